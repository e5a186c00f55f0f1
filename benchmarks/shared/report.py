"""Result files, and the conditions of a measurement."""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

_X86_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_FLAGS = (*_X86_FLAGS, "asimd", "sve", "bf16", "i8mm")


def read_conditions(packages: Collection[str]) -> dict[str, str]:
    """Return the date, the commit, the machine and the versions of `packages`.

    Where torch is among them: also the dtype that engines on this CPU compute in, unless told another.
    """
    return {
        "date": date.today().isoformat(),
        "commit": read_commit(),
        "cpu": f"{read_cpu_name()}, {len(os.sched_getaffinity(0))} cores",
        "cpu flags": read_cpu_flags(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        **({"dtype": _engine_dtype()} if "torch" in packages else {}),
    }


def read_commit() -> str:
    """Return the checked-out commit, with `+` if files were changed since; `unknown` without git."""
    if shutil.which("git") is None:
        return "unknown"
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "unknown"


def read_cpu_name() -> str:
    return _read_cpu("model name") or platform.processor()


def read_cpu_flags() -> str:
    """Return which of the instructions that products use this CPU has."""
    flags = set((_read_cpu("flags") or _read_cpu("Features")).split())  # x86 or Arm
    return " ".join(flag for flag in _FLAGS if flag in flags) or "none known"


def _read_cpu(name: str) -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith(name)), "")


def _engine_dtype() -> str:
    from benchmarks.shared.default_dtype import engine_dtype
    from diffuserve.models.machine.devices import dtype_name

    return dtype_name(engine_dtype())


def markdown_table(title: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table with a column for every key of any row; `''` without rows."""
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"## {title}", "", f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(row.get(name, "") for name in names) + " |" for row in rows]
    return "\n".join(lines)


def write_report(stem: Path, content: Mapping[str, object], text: str, conditions: Mapping[str, str]) -> None:
    """Write `content` to `stem`_DATE.json, and `text` with the conditions to `stem`_DATE.md."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    path = f"{stem}_{conditions['date']}"
    kept = {"conditions": conditions, **content}
    Path(f"{path}.json").write_text(json.dumps(kept, indent=2) + "\n")
    told = "; ".join(f"{name} {value}" for name, value in conditions.items())
    Path(f"{path}.md").write_text(f"{text}\n\nConditions: {told}.\n")
    print(f"wrote {path}.json and .md")
