"""Result files, and the conditions of a measurement."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from benchmarks.shared.places import OUT
from diffuserve.bench.conditions import read_conditions as read_machine
from diffuserve.bench.machine_load import MachineLoad, MachineLoadMeter

KEEP_BUSY = "BENCHMARKS_KEEP_BUSY"
"""Variable that `make bench NAME=… ARGS=--keep-busy` sets, to keep results of a busy machine as others."""
_METER = MachineLoadMeter()
"""Measures from the import on, with which a benchmark begins."""


def read_conditions(packages: Collection[str]) -> dict[str, str]:
    """Return the date, the commit, the machine and the versions of `packages`.

    Where torch is among them: also the dtype that engines on this CPU compute in, unless told another.
    """
    read = read_machine(packages)
    dtype = {"dtype": _engine_dtype()} if "torch" in packages else {}
    return {"date": read["date"], "commit": read_commit()} | read | dtype


def read_commit() -> str:
    """Return the checked-out commit, with `+` if files were changed since; `unknown` without git."""
    if shutil.which("git") is None:
        return "unknown"
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "unknown"


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


def write_report(
    stem: Path,
    content: Mapping[str, object],
    text: str,
    conditions: Mapping[str, str],
    load: MachineLoad | None = None,
) -> Path:
    """Write what was measured, and what else ran on the machine, to `stem`_DATE.json and .md.

    Return `stem`_DATE. Beside other work it lies under `out/` instead, unless `--keep-busy` was given. `load`
    is what else ran, where this process and what it waited for are not all that was measured.
    """
    load = load or _METER.read()
    if load.warning is not None:
        print(f"\nBUSY: {load.warning}\n", file=sys.stderr)
        stem = stem if KEEP_BUSY in os.environ else OUT / "busy-results" / stem.name
    told = {
        "load": f"{load.load_before:.2f} before, {load.load_after:.2f} after",
        "other work": f"{load.other_cores:.2f} of {load.num_cores} cores",
    }
    return write_counted(stem, {"busy": load.is_busy, **content}, text, {**conditions, **told})


def write_counted(
    stem: Path, content: Mapping[str, object], text: str, conditions: Mapping[str, str]
) -> Path:
    """Write what holds on a busy machine too, such as counts; return `stem`_DATE, without its endings."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    path = stem.with_name(f"{stem.name}_{conditions['date']}")
    kept = {"conditions": conditions, **content}
    Path(f"{path}.json").write_text(json.dumps(kept, indent=2) + "\n")
    told = "; ".join(f"{name} {value}" for name, value in conditions.items())
    Path(f"{path}.md").write_text(f"{text}\n\nConditions: {told}.\n")
    print(f"wrote {path}.json and .md")
    return path


def refresh(document: Path, name: str, text: str) -> None:
    """Replace what is between the marks `name:start` and `name:end` of the document."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    marked = re.compile(f"{re.escape(start)}.*{re.escape(end)}", re.DOTALL)
    replaced = f"{start}\n{text}\n{end}"
    new, count = marked.subn(lambda _match: replaced, document.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"{document} has the marks {start} and {end} {count} times; it needs them once")
    document.write_text(new, encoding="utf-8")
