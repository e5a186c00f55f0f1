"""The simulation of preemption, with the product's own policy, keeps what its page says."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "simulate_preemption.py"


def test_interactive_jobs_wait_two_steps_and_a_second_at_most_and_throughput_stays(tmp_path: Path) -> None:
    out = tmp_path / "found"
    subprocess.run([sys.executable, SCRIPT, "--quick", "--out", out], check=True)
    rows = json.loads(out.with_suffix(".json").read_text())["rows"]
    assert len(rows) == 4
    for row in rows:
        assert row["p99"] <= row["p99_allowed"] < row["p99_without"] / 5
        assert row["throughput"] >= 0.97
        assert row["preempted"] > 0
