"""Benchmarks as real processes, on loads so small that their figures mean nothing."""

import subprocess
import sys
from pathlib import Path

from support.waiting import HANG_SECONDS

_FOLDER = Path(__file__).parents[2] / "benchmarks"


def run_quickly(program: str) -> str:
    """Return what a program of the benchmarks prints with `--quick`; it has to succeed."""
    done = subprocess.run(
        [sys.executable, str(_FOLDER / program), "--quick"],
        capture_output=True,
        text=True,
        timeout=3 * HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
