"""`diffuserve tune` on the tiny model: it measures, keeps and shows what it found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diffuserve.settings import Settings
from diffuserve.tuning.applying import with_tuning

WORKLOAD = """
mix:
  - {label: small, width: 64, height: 64, input: {num_inference_steps: 1}}
prompts: [a red star, a green circle]
"""


def tune(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DIFFUSERVE_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "diffuserve", "tune", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_what_it_finds_is_kept_shown_and_taken(tmp_path: Path) -> None:
    workload = tmp_path / "small.yaml"
    workload.write_text(WORKLOAD)
    asked = ("--slo", "p90<20s", "--workload", str(workload), "--budget", "40s", "--device", "cpu")
    done = tune(tmp_path, *asked)
    assert done.returncode == 0, done.stderr
    assert "p90<20s" in done.stdout
    shown = json.loads(tune(tmp_path, "--show", "--json", "--device", "cpu").stdout)
    assert shown["model"] == "tiny-flux"
    assert max(each["rate"] or 0 for each in shown["tried"]) > 0
    config = with_tuning(Settings(cache_dir=tmp_path, device="cpu").engine_process)  # type: ignore[call-arg]
    assert config.engine.token_budget == shown["options"]["token_budget"]
    assert config.dtype == shown["options"]["dtype"]
