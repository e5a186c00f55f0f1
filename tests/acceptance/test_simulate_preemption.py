"""The simulation of preemption, with the product's own policy, keeps what its page says."""

import json
from pathlib import Path

from support.benchmark_runs import run_benchmark


def test_interactive_jobs_wait_two_steps_and_a_second_at_most_and_throughput_stays(tmp_path: Path) -> None:
    out = tmp_path / "found"
    assert run_benchmark("preemption", "--quick", "--out", str(out)).returncode == 0
    rows = json.loads(out.with_suffix(".json").read_text())["rows"]
    assert len(rows) == 4
    for row in rows:
        assert row["p99"] <= row["p99_allowed"] < row["p99_without"] / 5
        assert row["throughput"] >= 0.97
        assert row["preempted"] > 0
