"""The benchmark of ways of batching runs, each on an engine of its own; what its figures are is not asked."""

import re

import pytest

from support.benchmark_runs import run_quickly


@pytest.mark.slow
def test_every_way_draws_the_load_within_its_own_bounds() -> None:
    printed = run_quickly("policies")
    rows = re.findall(r"^\| ([a-z][^|]+) \|.* ([\d.]+) \| ([\d.]+) \|$", printed, re.MULTILINE)
    requests_per_step = {way: float(requests) for way, _, requests in rows}
    assert all(float(images_per_second) > 0 for _, images_per_second, _ in rows)
    assert requests_per_step.pop("one at a time") == 1
    assert requests_per_step.pop("step by step") >= 1
    assert len(requests_per_step) == 2
    assert all(1 <= requests <= 4 for requests in requests_per_step.values())
