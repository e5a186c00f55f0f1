"""The benchmark of ways of batching runs, each on an engine of its own; what its figures are is not asked."""

import re

import pytest

from support.benchmark_runs import run_quickly

_MOST = {"one at a time": 1, "collect for 0.1 s, batches of 4": 4}


@pytest.mark.slow
def test_every_way_draws_the_load_within_its_own_bounds() -> None:
    printed = run_quickly("policies")
    rows = re.findall(r"^\| (\d+%) \| ([a-z][^|]+) \|.* ([\d.]+) \| ([\d.]+) \|$", printed, re.MULTILINE)
    assert [load for load, *_ in rows] == [load for load in ("50%", "70%", "90%") for _ in range(4)]
    assert all(float(images_per_second) > 0 for *_, images_per_second, _ in rows)
    assert all(1 <= float(requests) <= _MOST.get(way, 6) for _, way, _, requests in rows)
