"""Control commands are followed at once, and each only once."""

import asyncio
from pathlib import Path

import pytest

from diffuserve.domain.errors import ServerUnavailable, WorkerNotFound
from diffuserve.domain.worker import ControlCommands
from diffuserve.worker.messages import AbortJob, JobFailed
from support.virtual_time import in_virtual_time, now
from support.waiting import eventually
from support.worker_fakes import HEARTBEAT_SECONDS, make_lease, running_agent


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
        assert worker.plane.control_requests[-1] == (["j1"], False)


@in_virtual_time
async def test_a_cancel_of_a_job_that_is_not_held_is_polled_with_a_pause(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        start = now()
        for _ in range(10):
            worker.plane.commands.put_nowait(ControlCommands(cancel=("gone",)))
        await eventually(lambda: len(worker.plane.control_requests) == 11)
        assert now() - start == pytest.approx(10 * 0.5, abs=0.1)


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
        await eventually(lambda: worker.plane.control_requests[-1] == (["j1"], True))


@in_virtual_time
@pytest.mark.parametrize("error", [WorkerNotFound("w1"), ServerUnavailable("away"), RuntimeError("a bug")])
async def test_polling_goes_on_after_a_failure(tmp_path: Path, error: Exception) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease())
        worker.plane.commands.put_nowait(error)
        worker.plane.commands.put_nowait(ControlCommands(cancel=("j1",)))
        await eventually(lambda: bool(engine.sent_of(AbortJob)))
        await asyncio.sleep(0)
