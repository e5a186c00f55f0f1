"""The benchmark of a fleet runs on one and on two control planes; what its figures are is not asked."""

import re

import pytest

from support.benchmark_runs import run_quickly


@pytest.mark.slow
def test_simulated_workers_run_jobs_on_one_and_on_two_control_planes() -> None:
    printed = run_quickly("fleet")
    rows = re.findall(r"^\| (\d) \| (\d) \| 1 \| \*\*([\d.]+)\*\* \| ([\d.]+) \|", printed, re.MULTILINE)
    assert [(planes, workers) for planes, workers, _, _ in rows] == [("1", "2"), ("2", "2")]
    assert all(float(jobs) > 0 and 0 < float(busy) <= 1.3 for _, _, jobs, busy in rows)
