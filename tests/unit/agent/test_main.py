"""A node beside the first keeps its ranks running until it is stopped."""

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from diffuserve.agent import main
from diffuserve.agent.config import WorkerConfig
from diffuserve.backoff import Backoff, RestartPolicy
from diffuserve.parallel.heartbeats import SILENCE_SECONDS
from support.waiting import HANG_SECONDS, block_until, eventually

AT_ONCE = RestartPolicy(Backoff(first_seconds=0.0, longest_seconds=0.0), healthy_seconds=60.0)


def stop_when_started(ledger: Path, num_starts: int) -> None:
    """Send this process SIGTERM once the ranks have started `num_starts` times."""

    def stop() -> None:
        block_until(lambda: ledger.exists() and len(ledger.read_text()) >= num_starts)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()


def command(ledger: Path, then: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", f"printf x >> {ledger}; {then}")


def test_ranks_that_end_are_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(main, "_NODE_RESTARTS", AT_ONCE)
    ledger = tmp_path / "ledger"
    stop_when_started(ledger, 3)
    assert main.run_node(WorkerConfig(server="", engine_command=command(ledger, "exit 70"))) == 0
    assert len(ledger.read_text()) >= 3
    assert "the ranks of this node ended (exit code 70)" in caplog.text


def test_a_stopped_node_ends_its_ranks_after_the_time_for_a_drain(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    stop_when_started(ledger, 1)
    ranks = command(ledger, "exec sleep 3600")
    assert main.run_node(WorkerConfig(server="", engine_command=ranks, drain_seconds=0.1)) == 0
    assert len(ledger.read_text()) == 1


def test_a_program_runs_a_node_on_a_thread_of_its_own_and_ends_it_by_an_event_or_a_cancellation(
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    ranks = ("/bin/sh", "-c", f"echo $$ >> {pids}; exec sleep 3600")
    config = WorkerConfig(server="", engine_command=ranks, drain_seconds=0.1)

    async def run() -> int:
        stop = asyncio.Event()
        for end in ("canceled", "stopped"):
            keeping = asyncio.create_task(main.keep_ranks(config, stop))
            num_before = len(pids.read_text().split()) if pids.exists() else 0
            await eventually(lambda: pids.exists() and len(pids.read_text().split()) > num_before)  # noqa: B023
            if end == "canceled":
                keeping.cancel()
                await asyncio.wait({keeping})
        stop.set()
        return await keeping

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(asyncio.run, run()).result(HANG_SECONDS) == 0
    block_until(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids.read_text().split()))


def test_a_pause_before_a_restart_outlasts_the_heartbeats_of_the_other_nodes() -> None:
    backoff = main._NODE_RESTARTS.backoff
    assert backoff.jittered(backoff.pause_seconds(1)) > SILENCE_SECONDS
