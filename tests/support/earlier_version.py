"""An earlier version of this project, taken out of git's history, to run beside today's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EARLIER = "029dc2c05"
"""The oldest commit whose processes work beside today's: its schema is 0016."""

_ROOT = Path(__file__).parents[2]
TODAY = _ROOT / "src"


def unpack_earlier(folder: Path) -> Path:
    """Return the earlier sources, unpacked into `folder`; skip where git does not have them."""
    archive = folder / "earlier.tar"
    command = ["git", "-C", str(_ROOT), "archive", "--output", str(archive), EARLIER, "src"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no commit {EARLIER} to run beside this version (git fetch --unshallow): {error}")
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return folder / "src"


def environment_of(sources: Path) -> dict[str, str]:
    """Return the environment in which `python -m diffuserve` is that of `sources`."""
    return {**os.environ, "PYTHONPATH": str(sources)}


def null_engine(ledger: Path, seconds: float) -> str:
    """Return the command of an engine that draws one pixel in `seconds`, and notes each job in `ledger`."""
    program = f"{sys.executable} -m diffuserve.testing.null_engine"
    return f"{program} --seconds {seconds} --files 1 --ledger {ledger}"
