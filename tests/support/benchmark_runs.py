"""Benchmarks as real processes, on loads so small that their figures mean nothing."""

import os
import subprocess
import sys
from pathlib import Path

from support.waiting import HANG_SECONDS

_ROOT = Path(__file__).parents[2]


def run_quickly(name: str) -> str:
    """Return what a benchmark prints with `--quick`; it has to succeed."""
    done = run_benchmark(name, "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_benchmark(name: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark to its end, with variables of the environment of its own."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", name, *options],
        cwd=_ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=3 * HANG_SECONDS,
        check=False,
    )
