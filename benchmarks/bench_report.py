"""Result files, and the conditions of a measurement."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def read_conditions(packages: Iterable[str]) -> dict[str, str]:
    """Return the date, the commit, the machine and the versions of `packages`."""
    return {
        "date": date.today().isoformat(),
        "commit": read_commit(),
        "cpu": f"{read_cpu_name()}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def read_commit() -> str:
    """Return the checked-out commit, with `+` if files were changed since."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False
    )
    return told.stdout.strip()


def read_cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.split(": ")[1] for line in lines if line.startswith("model name")), platform.processor()
    )


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
