"""The stages for a GPU, on a pretended one, with no more packages than the kit's machine has."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import pytest

from support.waiting import HANG_SECONDS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_day.py"
WHEELS = dict(
    re.findall(r"^([\w-]+)==(\S+) ", (ROOT / "scripts" / "gpu_kit_wheels.txt").read_text(), re.MULTILINE)
)
THERE = """
accelerate anyio certifi charset-normalizer click einops filelock fsspec h11 hf-xet httpcore httpx
huggingface-hub idna jaxtyping jinja2 markdown-it-py markupsafe mdurl mpmath networkx numpy packaging pillow
protobuf psutil pygments pyyaml regex requests rich safetensors sentencepiece setuptools shellingham six sympy
tokenizers torch tqdm transformers triton typer typing-extensions urllib3 wadler-lindig zipp
""".split()  # noqa: SIM905 (forty lines)
NEEDED_HERE = ["httpcore2", "httpx2", "truststore"]  # by huggingface_hub 2, where the machine has 1.33

Play = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter that finds the packages of such a machine alone."""
    environment = tmp_path_factory.mktemp("machine")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    [site] = environment.glob("lib/*/site-packages")
    for name in (*WHEELS, *THERE, *NEEDED_HERE):
        link_distribution(name, site)
    return environment / "bin" / "python"


def link_distribution(name: str, site: Path) -> None:
    found = distribution(name)
    for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
        if not (site / top).exists():
            (site / top).symlink_to(str(found.locate_file(top)))


@pytest.fixture
def play(python: Path, tmp_path: Path) -> Play:
    """Return a function that plays stages without git and without anything of this environment."""

    def playing(*options: str) -> "subprocess.CompletedProcess[str]":
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        (tmp_path / "bin").mkdir(exist_ok=True)
        environment = kept | {"PATH": str(tmp_path / "bin"), "CUDA_VISIBLE_DEVICES": ""}
        command = [str(python), str(SCRIPT), "--out", str(tmp_path / "out"), *options]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=8 * HANG_SECONDS, check=False
        )

    return playing


def found_in(report: Path) -> dict[str, dict[str, object]]:
    stages = json.loads(report.read_text())
    return {
        name: {found["what"]: found["ok"] for found in stage["findings"]} for name, stage in stages.items()
    }


@pytest.mark.slow  # unit tests play its stages
def test_stages_are_played_alone_and_their_report_grows(play: Play, tmp_path: Path) -> None:
    first = play("--dry-run", "about")
    assert first.returncode == 0, first.stderr
    second = play("--dry-run", "--stages", "graphs", "--copy-to", str(tmp_path))
    assert second.returncode == 0, second.stderr
    found = found_in(tmp_path / "gpu_day_dry.json")
    assert {"GPU", "torch", "attention, bfloat16"} <= set(found["about"])
    assert "CUDA graphs" in found["graphs"]
    assert "| GPU | pretended GPU |" in second.stdout


@pytest.mark.slow
def test_every_stage_is_played_on_a_pretended_gpu_and_finds_nothing_wrong(play: Play, tmp_path: Path) -> None:
    done = play("--dry-run")
    assert done.returncode == 0, done.stdout
    verdicts = found_in(tmp_path / "out" / "gpu_day_dry.json")
    wrong = [(name, what) for name, found in verdicts.items() for what, ok in found.items() if ok is False]
    assert wrong == []
    for family in ("FLUX.1-schnell", "FLUX.1-dev", "SD 1", "SD 2", "SDXL", "Wan 2.1", "Wan 2.2"):
        assert all(verdicts["parity"][f"{family}, {dtype}, dB"] for dtype in ("float32", "bfloat16"))
    assert all("images a minute" in verdicts[way] for way in ("eager", "fp8", "int8"))


def test_without_a_gpu_it_says_so_and_measures_nothing(play: Play) -> None:
    done = play("about")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpu_day needs a GPU with CUDA, and torch finds none on this machine\n"


def test_an_unknown_stage_is_named_beside_those_that_there_are(play: Play) -> None:
    done = play("--dry-run", "about", "speeed")
    assert done.returncode == 1
    assert "no stage speeed; the stages are about, kernels" in done.stderr


def test_the_wheels_have_the_versions_that_are_tested_here() -> None:
    assert {name: distribution(name).version for name in WHEELS} == WHEELS
