"""Result files, and the conditions of a measurement."""

import json
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from diffuserve.bench.conditions import read_conditions as read_machine


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


def write_report(stem: Path, content: Mapping[str, object], text: str, conditions: Mapping[str, str]) -> None:
    """Write `content` to `stem`_DATE.json, and `text` with the conditions to `stem`_DATE.md."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    path = f"{stem}_{conditions['date']}"
    kept = {"conditions": conditions, **content}
    Path(f"{path}.json").write_text(json.dumps(kept, indent=2) + "\n")
    told = "; ".join(f"{name} {value}" for name, value in conditions.items())
    Path(f"{path}.md").write_text(f"{text}\n\nConditions: {told}.\n")
    print(f"wrote {path}.json and .md")
