"""The short version of `make chaos`: real processes, `kill -9`, a frozen worker, PostgreSQL restarted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[2] / "benchmarks" / "chaos.py"
SHORT = ["--jobs", "40", "--kills", "4", "--seconds", "5", "--freezes", "1", "--database-restarts", "1"]
SHORT += ["--lease-seconds", "1.5"]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_nothing_accepted_is_lost_or_published_twice(database: str, tmp_path: Path) -> None:
    output = tmp_path / "results"
    command = [sys.executable, str(CHAOS), "--database", database, "--output", str(output), *SHORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = output.glob("chaos_*.json")
    (run,) = json.loads(result.read_text())["runs"]
    verdict = run["verdict"]
    assert verdict["accepted"] >= 40
    assert sum(verdict["statuses"].values()) == verdict["accepted"]
    assert (verdict["lost"], verdict["doubled"], verdict["damaged"]) == (0, 0, 0)
    assert verdict["interrupted"] >= 1
    assert run["fenced_writes"] >= 1
