"""The tables of our server beside others, from the newest results of the benchmark that plays them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reference.markdown import table

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_HEADINGS = (
    "server",
    "images a second",
    "of one at a time",
    "p95 saturated",
    "p95 at 70 %",
    "p95 at low load",
    "CPU an image",
)
_NONE_YET = "No result is there yet: `make bench NAME=serve-peers` and then `make reference` put it here.\n"


def regions(results: Path = _RESULTS) -> Mapping[str, str]:
    """Return the part of the page that comes from the results of the newest day in a folder, one by dtype."""
    found = sorted(results.glob("serve-peers_*.json"))
    newest = max((_day(path) for path in found), default="")
    parts = [told(path) for path in found if _day(path) == newest]
    return {"serve-peers": "\n".join(parts) or _NONE_YET}


def told(path: Path) -> str:
    """Return the table of a result, and its conditions."""
    result = json.loads(path.read_text(encoding="utf-8"))
    conditions = "; ".join(f"{name} {value}" for name, value in result["conditions"].items())
    servers: dict[str, dict[str, Mapping[str, Any]]] = {}
    for each in result["figures"]:
        servers.setdefault(each["server"], {})[each["rate"]] = each
    one_at_a_time = next(iter(servers.values()))["saturated"]["images_per_second"]
    rows = [_row(name, rates, one_at_a_time) for name, rates in servers.items()]
    link = f"[The result](../../benchmarks/results/{path.stem}.md)"
    return f"{table(_HEADINGS, rows)}\n{link}. Conditions: {conditions}.\n"


def _row(name: str, rates: Mapping[str, Mapping[str, Any]], one_at_a_time: float) -> tuple[str, ...]:
    saturated = rates["saturated"]
    p95 = [f"{rates[rate]['latency']['percentiles']['95']:.2f} s" for rate in ("saturated", "70 %", "low")]
    speed = saturated["images_per_second"]
    times = f"**{speed / one_at_a_time:.2f}×**"
    return name, f"{speed:.1f}", times, *p95, f"{saturated['cpu_ms']:.0f} ms"


def _day(path: Path) -> str:
    return path.stem.rpartition("_")[2]
