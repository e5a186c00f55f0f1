"""Results that wait for an artifact store that is away: how long, how many, and what ends the wait."""

import asyncio
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from diffuserve.agent.state import capacity
from diffuserve.domain.workers.worker import ControlCommands, Lease, ReleaseCause
from diffuserve.protocol.messages import FinishedFile, JobFinished
from support.virtual_time import in_virtual_time
from support.waiting import eventually
from support.worker_fakes import AgentUnderTest, FakeEngine, make_lease, running_agent

HOURS = 3_600.0


def write_image(engine: FakeEngine, attempt: str) -> FinishedFile:
    path = engine.job_folder(attempt) / "0.png"
    path.write_bytes(b"image")
    return FinishedFile(path=str(path), name="0.png", content_type="image/png", width=8, height=8)


async def finish_without_storage(worker: AgentUnderTest, *leases: Lease) -> FakeEngine:
    """Have the engine finish jobs whose files cannot be uploaded."""
    engine = await worker.take(*leases)
    worker.plane.has_storage.clear()
    for lease in leases:
        attempt = f"{lease.job_id}-{lease.lease_token}"
        engine.say(JobFinished(attempt=attempt, files=(write_image(engine, attempt),)))
    await eventually(lambda: len(worker.plane.uploads) == len(leases))
    return engine


@in_virtual_time
async def test_a_result_is_delivered_hours_later_although_its_engine_died_meanwhile(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await finish_without_storage(worker, make_lease())
        engine.die(-9)
        await worker.engines.next(2)
        shutil.rmtree(engine.folder / "j1-1", ignore_errors=True)  # as with the folder of a dead engine
        await asyncio.sleep(5 * HOURS)
        worker.plane.has_storage.set()
        await eventually(lambda: bool(worker.plane.completions))
        ((job_id, completion),) = worker.plane.completions
        assert (job_id, completion.result.artifacts[0].size_bytes) == ("j1", len(b"image"))
        assert not worker.plane.failures
        assert not worker.plane.releases


@in_virtual_time
async def test_without_a_store_no_more_is_claimed_than_a_worker_may_hold(tmp_path: Path) -> None:
    async with running_agent(tmp_path, max_jobs=2) as worker:
        await finish_without_storage(worker, make_lease("j1"), make_lease("j2"))
        num_claims = len(worker.plane.claims)
        worker.plane.leases.put_nowait([])  # the claim that was under way
        await asyncio.sleep(HOURS)
        assert len(worker.plane.claims) == num_claims
        worker.plane.has_storage.set()
        await eventually(lambda: len(worker.plane.claims) > num_claims)


@in_virtual_time
async def test_a_job_that_waits_for_the_store_can_be_canceled(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await finish_without_storage(worker, make_lease())
        worker.plane.commands.put_nowait(ControlCommands(cancel=("j1",)))
        await eventually(lambda: not worker.agent.held)
        assert [failure.error.code for _, failure in worker.plane.failures] == ["aborted"]


@in_virtual_time
async def test_a_drained_worker_hands_back_what_it_cannot_deliver(tmp_path: Path) -> None:
    async with running_agent(tmp_path, drain_seconds=60.0) as worker:
        await finish_without_storage(worker, make_lease())
        worker.agent.drain()
        assert await worker.exit_code == 0
        assert [(job_id, release.cause) for job_id, release in worker.plane.releases] == [
            ("j1", ReleaseCause.DRAIN)
        ]


@in_virtual_time
async def test_without_room_on_the_disk_nothing_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage(capacity.MIN_FREE_BYTES - 1))
    async with running_agent(tmp_path, is_ready=False) as worker:
        engine = await worker.engines.next()
        engine.become_ready()
        await eventually(lambda: len(worker.plane.heartbeats) == 3)
        assert worker.plane.claims == []
        assert "no job is claimed: the folder for temporary files" in caplog.text
        monkeypatch.undo()
        engine.beat()
        await eventually(lambda: bool(worker.plane.claims))
