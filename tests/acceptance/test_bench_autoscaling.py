"""The simulated fleets keep what the documents say of them, on one seeded day."""

import re

import pytest

from support.benchmark_runs import run_quickly


@pytest.mark.slow
def test_the_recommended_way_needs_less_waits_hardly_longer_and_kills_nobody() -> None:
    printed = run_quickly("autoscaling")
    cells = [re.split(r"\s*\|\s*", line.strip("| ")) for line in printed.splitlines() if line.startswith("|")]
    names, _rule, *rows = cells
    fleets = {row[0]: dict(zip(names, row, strict=True)) for row in rows}
    other, ours, blunt = (fleets[name] for name in ("ScaledObject", "ScaledJob", "HPA, 30 s to finish"))
    assert float(ours["GPU-hours"]) <= 0.8 * float(other["GPU-hours"])
    assert float(ours["wait p50 s"]) <= float(other["wait p50 s"])
    assert float(ours["p95 beside"]) <= 60.0
    assert (ours["busy killed"], ours["work lost h"]) == ("0.0", "0.00")
    assert float(blunt["busy killed"]) > 0
    assert float(fleets["ScaledJob, predictive"]["p95 s"]) <= float(ours["p95 s"])
