"""An earlier version of this project, taken out of git's history, to run beside today's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_FIRST_SCHEMA = "src/diffuserve/jobs/database/migrations/versions/0100_first_schema.py"
TODAY = _ROOT / "src"


def unpack_earlier(folder: Path) -> Path:
    """Return the earlier sources, unpacked into `folder`; skip where git does not have them.

    They are the oldest whose processes work beside today's: those that brought the first schema.
    """
    archive, sources = folder / "earlier.tar", folder / "src"
    try:
        commit = _git("log", "-1", "--diff-filter=A", "--format=%H", "--", _FIRST_SCHEMA)
        _git("archive", "--output", str(archive), commit, "src")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no commit to run beside this version (git fetch --unshallow): {error}")
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    place = [sys.executable, "-c", "import diffuserve; print(diffuserve.__file__)"]
    imported = subprocess.run(place, env=environment_of(sources), check=True, capture_output=True, text=True)
    assert Path(imported.stdout.strip()).is_relative_to(sources), "another version is imported"
    return sources


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environment_of(sources: Path) -> dict[str, str]:
    """Return the environment in which `python -m diffuserve` is that of `sources`."""
    return {**os.environ, "PYTHONPATH": str(sources)}


def null_engine(ledger: Path, seconds: float) -> str:
    """Return the command of an engine that draws one pixel in `seconds`, and notes each job in `ledger`."""
    program = f"{sys.executable} -m diffuserve.testing.null_engine"
    return f"{program} --seconds {seconds} --files 1 --ledger {ledger}"
