"""The machine and the versions under which something was measured."""

import os
import platform
from collections.abc import Collection
from datetime import date
from importlib.metadata import version
from pathlib import Path

_X86_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_FLAGS = (*_X86_FLAGS, "asimd", "sve", "bf16", "i8mm")


def read_conditions(packages: Collection[str]) -> dict[str, str]:
    """Return the date, this machine and the versions of `packages`."""
    return {
        "date": date.today().isoformat(),
        "cpu": f"{read_cpu_name()}, {len(os.sched_getaffinity(0))} cores",
        "cpu flags": read_cpu_flags(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def read_cpu_name() -> str:
    """Return what the CPU calls itself."""
    return _read_cpu("model name") or platform.processor()


def read_cpu_flags() -> str:
    """Return which of the instructions that products use this CPU has."""
    flags = set((_read_cpu("flags") or _read_cpu("Features")).split())  # x86 or Arm
    return " ".join(flag for flag in _FLAGS if flag in flags) or "none known"


def _read_cpu(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""  # macOS
    return next((line.partition(": ")[2] for line in lines if line.startswith(name)), "")
