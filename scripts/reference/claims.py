"""The table of the field's claims, from the newest result of the benchmark that compares them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reference.markdown import table

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_HEADINGS = ("what is said", "compared here", "", "here", "single rounds", "than said")
_NONE_YET = "No result is there yet: `make bench NAME=claims` and then `make reference` put it here.\n"


def regions(results: Path = _RESULTS) -> Mapping[str, str]:
    """Return the part of the page that comes from the newest result in a folder."""
    found = sorted(results.glob("claims_*.json"), key=lambda path: (path.stem.rpartition("_")[2], path.stem))
    return {"claims": told(found[-1]) if found else _NONE_YET}


def told(path: Path) -> str:
    """Return the table of a result, and its conditions."""
    result = json.loads(path.read_text(encoding="utf-8"))
    conditions = "; ".join(f"{name} {value}" for name, value in result["conditions"].items())
    link = f"[The result](../../benchmarks/results/{path.stem}.md)"
    return f"{table(_HEADINGS, _rows(result['claims']))}\n{link}. Conditions: {conditions}.\n"


def _rows(findings: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Yield a row for each finding; a claim stands beside its first."""
    before = None
    for each in findings:
        said = each["said"] if each["said"] != before else ""
        before = each["said"]
        yield said, each["compared"], each["way"], f"**{each['shown']}**", each["spread"], each["verdict"]
