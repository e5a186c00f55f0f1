"""The table of one trace on several cluster managers, from the newest result of its benchmark."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reference.markdown import table

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_HEADINGS = (
    "fleet",
    "wait, median",
    "wait, p95",
    "worker-seconds",
    "jobs lost",
    "drawn again",
    "a dead worker replaced after",
    "an announced one after",
)
_NONE_YET = "No result is there yet: `make bench NAME=fleet-engines` and then `make reference` put it here.\n"
_PLOT = "![Workers that are ready while the trace goes by](../images/fleet-engines.svg)"


def regions(results: Path = _RESULTS) -> Mapping[str, str]:
    """Return the part of the page that comes from the newest result in a folder."""
    found = max(results.glob("fleet-engines_*.json"), key=_day, default=None)
    return {"fleet-engines": _NONE_YET if found is None else told(found)}


def told(path: Path) -> str:
    """Return the table of a result, its plot and its conditions."""
    result = json.loads(path.read_text(encoding="utf-8"))
    conditions = "; ".join(f"{name} {value}" for name, value in result["conditions"].items())
    rows = [_row(name, figures) for name, figures in result["fleets"].items()]
    link = f"[The result](../../benchmarks/results/{path.stem}.md)"
    return f"{table(_HEADINGS, rows)}\n{_PLOT}\n\n{link}. Conditions: {conditions}.\n"


def _row(name: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
    lost, drawn = figures["num_lost"], figures["num_jobs"]
    return (
        name,
        f"{figures['wait_p50']:.1f} s",
        f"{figures['wait_p95']:.1f} s",
        f"{figures['worker_seconds']:.0f}",
        f"{lost} of {drawn + lost}",
        f"{figures['num_redrawn']}",
        *(", ".join(map(_seconds, figures["replaced"][kind])) for kind in ("death", "notice")),
    )


def _seconds(replaced: float | None) -> str:
    return "none in time" if replaced is None else f"{replaced:.0f} s"


def _day(path: Path) -> str:
    return path.stem.rpartition("_")[2]
