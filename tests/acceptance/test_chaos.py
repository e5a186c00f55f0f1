"""The short version of `make chaos`: real processes, `kill -9`, a frozen worker; on PostgreSQL two control
planes behind a load balancer, of which one is frozen with the lock, then both, then Valkey and PostgreSQL
are killed. PostgreSQL and the bucket are away for longer than leases last. Disks are full for a while, and
the clock is set back."""

import json
from pathlib import Path

import pytest

from support.benchmark_runs import run_benchmark

SHORT = ["--jobs", "40", "--kills", "3", "--seconds", "4", "--freezes", "1", "--lease-seconds", "9"]
SHORT += ["--webhook-grace", "1"]  # one whose sender was killed comes after a minute, and is owed until then
SHORT += ["--full-disks", "1", "--clock-steps", "1"]
SHORT += ["--download-kills", "1", "--decode-kills", "1", "--decode-freezes", "0", "--several-kills", "1"]
ALONE = ["--server-freezes", "0", "--bad-network"]
TOGETHER = ["--server-freezes", "1", "--transaction-freezes", "1", "--blackouts", "1"]
TOGETHER += ["--goes-on-seconds", "100"]  # the machine may be busy
TOGETHER += ["--valkey-kills", "1", "--database-restarts", "1"]
TOGETHER += ["--bucket-away-seconds", "5", "--database-away-seconds", "20"]
TOGETHER += ["--seed", "3"]  # it begins with one control plane


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_nothing_accepted_is_lost_or_published_twice(database: str, tmp_path: Path) -> None:
    output = tmp_path / "results"
    chosen = TOGETHER if database == "postgresql" else ALONE
    done = run_benchmark("chaos", "--database", database, "--output", str(output), *SHORT, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = output.glob("chaos_*.json")
    (run,) = json.loads(result.read_text())["runs"]
    verdict, webhooks, toll = run["verdict"], run["webhooks"], run["toll"]
    assert verdict["accepted"] >= 40
    assert sum(verdict["statuses"].values()) == verdict["accepted"]
    assert (verdict["lost"], verdict["doubled"], verdict["damaged"]) == (0, 0, 0)
    assert verdict["redrawn"] == 0, "no outage costs work"
    assert verdict["handed_over"] >= verdict["phased"] > 0, "every job of theirs has two phases"
    assert verdict["redone"] == 0, "a death costs one phase, of those that had not ended"
    assert verdict["interrupted"] >= 1
    assert run["fenced_writes"] >= 1
    assert webhooks["told"] + webhooks["owed"] == verdict["accepted"]
    assert (webhooks["missing"], webhooks["untrue"]) == (0, 0)
    assert run["followed"]["gaps"] == 0
    if database == "sqlite":
        assert run["network"]["stalled"] + run["network"]["cut"] >= 1
    assert (toll["full_disks"], toll["clock_steps"]) == (1, 1)
    assert (toll["download_kills"], toll["decode_kills"], toll["several_kills"]) == (1, 1, 1)
    assert run["crossings"]["refused"] >= 40
    assert run["crossings"]["crossed"] == 0
    if database == "postgresql":
        assert run["setup"]["control planes"] == 2
        assert toll["kills"]["server"] >= 3, "one alone, then both"
        assert len(toll["transaction_freezes"]) == 1
        assert (toll["blackouts"], toll["valkey_kills"], toll["database_restarts"]) == (1, 1, 1)
        assert (toll["bucket_outages"], toll["cut_uploads"], toll["database_outages"]) == (1, 1, 1)
