"""The agent stores the checkpoints that its engine gives, and hands jobs back with them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.errors import DownloadFailed
from diffuserve.domain.jobs.checkpoint import CHECKPOINT_ID, StoredCheckpoint
from diffuserve.domain.workers.worker import Lease
from diffuserve.protocol.messages import (
    AbortJob,
    AddJob,
    CheckpointReady,
    JobFailed,
    JobFinished,
    PreemptJob,
    StepProgress,
)
from support.virtual_time import in_virtual_time, now
from support.waiting import eventually
from support.worker_fakes import AgentUnderTest, FakeEngine, make_lease, running_agent

LONG: dict[str, Any] = {"cost_seconds": 60.0}


async def begun(worker: AgentUnderTest, *leases: Lease) -> FakeEngine:
    """Have the engine do a step of each of these jobs."""
    engine = await worker.take(*leases)
    for lease in leases:
        engine.say(
            StepProgress(attempt=f"{lease.job_id}-{lease.lease_token}", phase="denoise", step=1, total=9)
        )
    await eventually(lambda: all(job.step for job in worker.agent.held.values()))
    return engine


def has_kept(worker: AgentUnderTest, number: int) -> bool:
    return len(worker.plane.kept) == number


def give(worker: AgentUnderTest, engine: FakeEngine, step: int, is_last: bool = False) -> Path:
    """Say that a checkpoint of the job `j1` is written."""
    path = engine.job_folder("j1-1") / f"checkpoint-{step}"
    path.write_bytes(b"half a star")
    ready = CheckpointReady(attempt="j1-1", path=str(path), step=step, seconds=10.0 * step, is_last=is_last)
    engine.say(ready)
    return path


@pytest.mark.parametrize(
    ("cost_seconds", "checkpoint_seconds", "expected"),
    [(60.0, 30.0, 30.0), (30.0, 30.0, 30.0), (29.9, 30.0, 0.0), (60.0, 0.0, 0.0), (0.0, 0.0, 0.0)],
)
async def test_only_long_jobs_are_kept(
    tmp_path: Path, cost_seconds: float, checkpoint_seconds: float, expected: float
) -> None:
    async with running_agent(tmp_path, checkpoint_seconds=checkpoint_seconds) as worker:
        engine = await worker.take(make_lease(cost_seconds=cost_seconds))
        assert [added.checkpoint_seconds for added in engine.sent_of(AddJob)] == [expected]


async def test_checkpoints_are_stored_in_turns_and_their_files_deleted(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.plane.may_keep.set()
        engine = await begun(worker, make_lease(**LONG))
        for number, step in enumerate((3, 6, 9), start=1):
            path = give(worker, engine, step)
            await eventually(partial(has_kept, worker, number))
            assert not path.exists()
        assert worker.plane.kept == [("j1", 0, 3), ("j1", 1, 6), ("j1", 0, 9)]


async def test_while_one_is_being_stored_only_the_newest_waits(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await begun(worker, make_lease(**LONG))
        job = worker.agent.held["j1"]
        give(worker, engine, 3)
        await eventually(lambda: job.checkpoint_upload is not None and job.unsent_checkpoint is None)
        paths = [give(worker, engine, step) for step in (6, 9)]
        await eventually(lambda: not any(path.exists() for path in paths))
        worker.plane.may_keep.set()
        await eventually(lambda: len(worker.plane.kept) == 2)
        assert [step for _, _, step in worker.plane.kept] == [3, 9]


async def test_a_job_that_ends_is_completed_after_what_is_under_way(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await begun(worker, make_lease(**LONG))
        path = give(worker, engine, 3)
        await eventually(lambda: not path.exists())
        engine.say(JobFinished(attempt="j1-1"))
        await eventually(lambda: not worker.agent.held["j1"].is_in_engine)
        assert worker.plane.completions == []
        worker.plane.may_keep.set()
        await eventually(lambda: bool(worker.plane.completions))


@in_virtual_time
async def test_a_drain_puts_long_jobs_down_and_releases_them_with_their_checkpoints(tmp_path: Path) -> None:
    async with running_agent(tmp_path, drain_seconds=5.0) as worker:
        engine = await begun(worker, make_lease(**LONG), make_lease("j2"))
        worker.plane.may_keep.set()
        worker.agent.drain()
        await eventually(lambda: bool(engine.sent_of(PreemptJob)))
        give(worker, engine, 4, is_last=True)
        engine.say(JobFailed(attempt="j1-1", code="aborted", message="aborted"))
        assert await worker.exit_code == 0
        assert [preempt_all.attempt for preempt_all in engine.sent_of(PreemptJob)] == ["j1-1"]
        released = {job_id: release.actual_seconds for job_id, release in worker.plane.releases}
        assert released == {"j1": 40.0, "j2": None}, "what is in the checkpoint, not what was done"
        assert [abort.attempt for abort in engine.sent_of(AbortJob)] == ["j2-1"]
        assert worker.plane.kept == [("j1", 0, 4)]
        assert [job_id for job_id, _ in worker.plane.releases] == ["j1", "j2"]
        assert worker.plane.failures == []


@in_virtual_time
async def test_a_drain_does_not_wait_for_an_engine_that_puts_nothing_down(tmp_path: Path) -> None:
    async with running_agent(tmp_path, drain_seconds=5.0) as worker:
        await begun(worker, make_lease(**LONG))
        start = now()
        worker.agent.drain()
        assert await worker.exit_code == 0
        assert now() - start == pytest.approx(15.0, abs=0.5)
        assert [job_id for job_id, _ in worker.plane.releases] == ["j1"]


STORED = StoredCheckpoint(lease_token=1, slot=0, step=5, size_bytes=9, sha256="a" * 64)


async def test_a_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.plane.may_fetch.set()
        engine = await worker.take(make_lease(checkpoint=STORED, **LONG))
        (added,) = engine.sent_of(AddJob)
        assert list(added.files) == [CHECKPOINT_ID]
        assert Path(added.files[CHECKPOINT_ID]).exists()


async def test_a_job_whose_checkpoint_is_gone_begins_anew(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.plane.may_fetch.set()
        worker.plane.fetch_outcomes.append(DownloadFailed("it is gone"))
        engine = await worker.take(make_lease(checkpoint=STORED, **LONG))
        assert [added.files for added in engine.sent_of(AddJob)] == [{}]
        assert worker.plane.failures == []
