"""The app for Modal: written by its command, imported by a real Modal, and run without an account."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.integrations.modal.app_file import write_app
from support.environments import ROOT, environment

PROGRAM = ROOT / "tests" / "support" / "modal_program.py"


def test_the_file_has_what_the_command_was_given(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "diffuserve", "integrations", "modal", "images.py"]
    options = ["--model", "flux-schnell", "--quantization", "int8", "--gpu", "L40S"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "images.py\n"
    text = (tmp_path / "images.py").read_text(encoding="utf-8")
    assert "SETTINGS = {'model': 'flux-schnell', 'quantization': 'int8'}" in text
    assert "GPU = 'L40S'" in text


@pytest.mark.parametrize(
    ("name", "message"), [("images.txt", "module that Modal can import"), ("here.py", "there already")]
)
def test_a_bad_place_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "here.py").touch()
    with pytest.raises(InvalidParams, match=message):
        write_app(tmp_path / name, {}, "H100")


@pytest.mark.slow
def test_the_bodies_of_the_app_draw_and_share_steps(tmp_path: Path) -> None:
    python = environment("modal", ["modal==1.6.4"]) / "bin" / "python"
    file = write_app(tmp_path / "images.py", {"model": "tiny-flux", "device": "cpu"}, "H100")
    own = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "DIFFUSERVE_API_KEY": "any"}
    command = [python, PROGRAM, file]
    done = subprocess.run(
        command, env=os.environ | own, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["functions"] == ["Images.*", "fetch", "web"]
    assert told["batch"] == [[0], [1], [2], [3], [4], [5], None]
    assert set(told["begins"]) == {"\x89PNG"}
    assert "width=7" in told["in_place"]
    assert told["refused"].startswith("ValueError: with_='glitter': is no parameter")
    assert told["requests_per_step"] > 2
    assert told["web"] == "ServerApp"
