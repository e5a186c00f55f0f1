"""Control commands are followed at once, and each only once."""

import asyncio
from pathlib import Path

import pytest

from diffuserve.domain.errors import ServerUnavailable, WorkerNotFound
from diffuserve.domain.workers.worker import ControlCommands, ReceivedCommands, ReleaseCause
from diffuserve.protocol.messages import AbortJob, CheckpointReady, JobFailed, JobFinished, PreemptJob
from support.virtual_time import in_virtual_time, now
from support.waiting import eventually
from support.worker_fakes import HEARTBEAT_SECONDS, make_lease, running_agent

INPUT = {"prompt": "a star", "image": {"id": "file_1", "width": 8, "height": 8, "mode": "RGB"}}
DRAINING = ReceivedCommands(cancel=("j1",), drain=True)


@in_virtual_time
async def test_a_cancel_aborts_the_job_and_reports_its_failure(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease())
        worker.plane.commands.put_nowait(ControlCommands(cancel=("j1",)))
        await eventually(lambda: bool(engine.sent_of(AbortJob)))
        engine.say(JobFailed(attempt="j1-1", code="aborted", message="aborted"))
        await eventually(lambda: not worker.agent.held)
        ((job_id, failure),) = worker.plane.failures
        assert (job_id, failure.error.code) == ("j1", "aborted")


@in_virtual_time
async def test_a_cancel_is_followed_once_and_then_known(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease())
        for _ in range(3):
            worker.plane.commands.put_nowait(ControlCommands(cancel=("j1",)))
        await eventually(lambda: len(worker.plane.control_requests) == 4)
        assert len(engine.sent_of(AbortJob)) == 1
        assert worker.plane.control_requests[-1] == ReceivedCommands(cancel=("j1",))


@in_virtual_time
async def test_a_cancel_of_a_job_that_is_not_held_is_polled_with_a_pause(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        start = now()
        for _ in range(10):
            worker.plane.commands.put_nowait(ControlCommands(cancel=("gone",)))
        await eventually(lambda: len(worker.plane.control_requests) == 11)
        assert now() - start == pytest.approx(10 * 0.5, abs=0.1)


@in_virtual_time
async def test_a_preempted_job_is_put_down_once_and_makes_room_before_it_is_released(tmp_path: Path) -> None:
    async with running_agent(tmp_path, max_jobs=1) as worker:
        engine = await worker.take(make_lease())
        num_claims = len(worker.plane.claims)
        for _ in range(3):
            worker.plane.commands.put_nowait(ControlCommands(preempt=("j1-1",)))
        await eventually(lambda: len(worker.plane.control_requests) == 4)
        assert worker.plane.control_requests[-1] == ReceivedCommands(preempt=("j1-1",))
        assert [preempt_all.attempt for preempt_all in engine.sent_of(PreemptJob)] == ["j1-1"]
        path = engine.job_folder("j1-1") / "checkpoint-3.safetensors"
        path.write_bytes(b"half a picture")
        engine.say(CheckpointReady(attempt="j1-1", path=str(path), step=3, is_last=True))
        engine.say(JobFailed(attempt="j1-1", code="aborted", message="aborted"))
        await eventually(lambda: len(worker.plane.claims) > num_claims)
        assert worker.plane.releases == []
        worker.plane.may_keep.set()
        await eventually(lambda: not worker.agent.held)
        ((job_id, release),) = worker.plane.releases
        assert (job_id, release.cause) == ("j1", ReleaseCause.PREEMPTED)
        assert worker.plane.kept == [("j1", 0, 3)]
        assert worker.plane.failures == []


@in_virtual_time
async def test_a_preempted_job_that_is_finished_meanwhile_is_completed(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease())
        worker.plane.commands.put_nowait(ControlCommands(preempt=("j1-1",)))
        await eventually(lambda: bool(engine.sent_of(PreemptJob)))
        engine.say(JobFinished(attempt="j1-1"))
        await eventually(lambda: bool(worker.plane.completions))
        engine.say(CheckpointReady(attempt="j1-1", is_last=True))
        await eventually(lambda: not worker.agent.held)
        assert worker.plane.releases == []


@in_virtual_time
async def test_a_preempted_job_that_still_fetches_its_images_is_handed_back_at_once(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.plane.leases.put_nowait([make_lease(input=INPUT)])
        await eventually(lambda: bool(worker.plane.fetches))
        worker.plane.commands.put_nowait(ControlCommands(preempt=("j1-1",)))
        await eventually(lambda: not worker.agent.held)
        assert [release.cause for _, release in worker.plane.releases] == [ReleaseCause.PREEMPTED]


@in_virtual_time
async def test_a_command_on_an_earlier_attempt_is_not_followed(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease(lease_token=2))
        worker.plane.commands.put_nowait(ControlCommands(preempt=("j1-1",)))
        await eventually(lambda: len(worker.plane.control_requests) == 2)
        assert engine.sent_of(PreemptJob) == []


@in_virtual_time
async def test_a_canceled_job_is_not_put_down(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease())
        worker.plane.commands.put_nowait(ControlCommands(cancel=("j1",), preempt=("j1-1",)))
        await eventually(lambda: len(worker.plane.control_requests) == 2)
        assert len(engine.sent_of(AbortJob)) == 1
        assert engine.sent_of(PreemptJob) == []


@in_virtual_time
async def test_a_lost_lease_brings_the_next_heartbeat_forward(tmp_path: Path) -> None:
    """The response to a heartbeat drops leases, by the tokens that the heartbeat named."""
    async with running_agent(tmp_path) as worker:
        await worker.take(make_lease())
        await eventually(lambda: len(worker.plane.heartbeats) > 0)
        start, num_heartbeats = now(), len(worker.plane.heartbeats)
        worker.plane.heartbeat_outcomes.append(ControlCommands(lost=("j1",)))
        worker.plane.commands.put_nowait(ControlCommands(lost=("j1",)))
        await eventually(lambda: not worker.agent.held)
        assert len(worker.plane.heartbeats) == num_heartbeats + 1
        assert now() - start < HEARTBEAT_SECONDS / 2


@in_virtual_time
async def test_a_command_to_drain_ends_the_worker(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.plane.commands.put_nowait(ControlCommands(drain=True))
        assert await worker.exit_code == 0


@in_virtual_time
async def test_a_draining_worker_says_so_when_it_polls(tmp_path: Path) -> None:
    async with running_agent(tmp_path, drain_seconds=1_000.0) as worker:
        await worker.take(make_lease())
        worker.agent.drain()
        worker.plane.commands.put_nowait(ControlCommands(cancel=("j1",)))
        await eventually(lambda: worker.plane.control_requests[-1] == DRAINING)


@in_virtual_time
@pytest.mark.parametrize("error", [WorkerNotFound("w1"), ServerUnavailable("away"), RuntimeError("a bug")])
async def test_polling_goes_on_after_a_failure(tmp_path: Path, error: Exception) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease())
        worker.plane.commands.put_nowait(error)
        worker.plane.commands.put_nowait(ControlCommands(cancel=("j1",)))
        await eventually(lambda: bool(engine.sent_of(AbortJob)))
        await asyncio.sleep(0)
