"""Where results go, and under which conditions they were measured."""

import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import date
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def read_conditions(packages: Iterable[str]) -> dict[str, str]:
    """Day, commit, machine and the versions of `packages`."""
    return {
        "date": date.today().isoformat(),
        "commit": read_commit(),
        "cpu": f"{read_cpu_name()}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def read_commit() -> str:
    """The commit that is checked out; `+` says that files were changed since."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False
    )
    return told.stdout.strip()


def read_cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.split(": ")[1] for line in lines if line.startswith("model name")), platform.processor()
    )
