"""The simulated fleet of spot workers keeps what the documents say of it, on two hours of one seed."""

import re

import pytest

from support.benchmark_runs import run_quickly


@pytest.mark.slow
def test_a_mix_costs_little_more_than_half_and_urgent_jobs_wait_no_longer() -> None:
    printed = run_quickly("spot-workers")
    placed = re.findall(
        r"^\| (0\.\d+) \| 2 \+ 10 \| placed \| [\d.]+ \| ([\d.]+)x .*?([\d.]+) s, ([\d.]+)x",
        printed,
        re.MULTILINE,
    )
    assert [load for load, *_ in placed] == ["0.50", "0.70", "0.85"]
    assert all(float(cost) <= 0.55 for _, cost, _, _ in placed)
    assert all(float(ratio) <= 1.1 for *_, ratio in placed)
