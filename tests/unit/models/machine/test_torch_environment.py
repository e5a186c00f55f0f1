"""Choices for torch's threads and CUDA memory, before torch is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diffuserve.models.machine.torch_environment import prepare_torch

# A process that tells what was chosen at the moment at which it imports torch, and ends.
_WATCH = """
import json, os, sys
def watch(event, arguments):
    if event == "import" and arguments[0] == "torch":
        names = ("GOMP_SPINCOUNT", "PYTORCH_ALLOC_CONF")
        print(json.dumps([os.environ.get(name) for name in names]), flush=True)
        os._exit(0)
sys.addaudithook(watch)
"""
_GENERATE = """
from diffuserve.cli.main import main
sys.argv = ["diffuserve", "generate", "a star"]
main()
"""
_ENGINE = """
from unittest.mock import MagicMock
from diffuserve.engine_process.start import main
from diffuserve.protocol.config import EngineProcessConfig
main.AgentLink = MagicMock()
sys.argv = ["engine", "--config", EngineProcessConfig().to_json(), "--socket", "none"]
main.main()
"""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which nobody has chosen anything."""
    chosen = ("GOMP_SPINCOUNT", "PYTORCH_ALLOC_CONF")
    without = {name: value for name, value in os.environ.items() if name not in chosen}
    monkeypatch.setattr(os, "environ", without)
    return without


def test_threads_spin_briefly_unless_the_operator_chose_otherwise(environment: dict[str, str]) -> None:
    prepare_torch()
    assert environment["GOMP_SPINCOUNT"] == "10000"
    environment["GOMP_SPINCOUNT"] = "7"
    prepare_torch()
    assert environment.pop("GOMP_SPINCOUNT") == "7"
    environment["OMP_WAIT_POLICY"] = "active"
    prepare_torch()
    assert "GOMP_SPINCOUNT" not in environment


def test_cuda_memory_grows_in_place_unless_the_operator_chose_otherwise(
    environment: dict[str, str],
) -> None:
    prepare_torch()
    assert environment.pop("PYTORCH_ALLOC_CONF") == "expandable_segments:True"
    environment["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:512"  # an older name
    prepare_torch()
    assert "PYTORCH_ALLOC_CONF" not in environment


@pytest.mark.parametrize("program", [_GENERATE, _ENGINE])
def test_they_are_chosen_before_torch_is_imported(
    program: str, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _WATCH + program]
    told = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert json.loads(told.stdout) == ["10000", "expandable_segments:True"], told.stderr
