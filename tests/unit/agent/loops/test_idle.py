"""An idle worker leaves when the control plane lets it, and never with a job."""

import asyncio
from pathlib import Path

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.protocol.messages import JobFinished
from support.virtual_time import in_virtual_time, now
from support.waiting import eventually
from support.worker_fakes import make_lease, running_agent

IDLE_SECONDS = 60.0


@in_virtual_time
async def test_a_worker_stays_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await asyncio.sleep(3_600.0)
        assert worker.plane.left_at == []


@in_virtual_time
async def test_an_idle_worker_that_may_leave_drains_and_ends(tmp_path: Path) -> None:
    async with running_agent(tmp_path, idle_seconds=IDLE_SECONDS) as worker:
        worker.plane.may_leave.append(True)
        begin = now()
        assert await worker.exit_code == 0
        assert 60.0 <= now() - begin < 65.0
        assert worker.plane.deregistered == ["w1"]


@in_virtual_time
async def test_a_worker_that_is_needed_asks_again_and_again(tmp_path: Path) -> None:
    async with running_agent(tmp_path, idle_seconds=IDLE_SECONDS) as worker:
        worker.plane.may_leave += [False, ServerUnavailable("restarting"), True]
        assert await worker.exit_code == 0
        first, second, third = worker.plane.left_at
        assert 15.0 <= second - first < 17.0
        assert 15.0 <= third - second < 17.0


@in_virtual_time
async def test_a_worker_with_a_job_does_not_ask(tmp_path: Path) -> None:
    async with running_agent(tmp_path, idle_seconds=IDLE_SECONDS) as worker:
        worker.plane.may_leave.append(True)
        engine = await worker.take(make_lease())
        await asyncio.sleep(600.0)
        assert worker.plane.left_at == []
        engine.say(JobFinished(attempt="j1-1"))
        ended_at = now()
        assert await worker.exit_code == 0
        assert now() - ended_at >= 60.0


@in_virtual_time
async def test_a_job_that_came_and_went_between_two_looks_counts(tmp_path: Path) -> None:
    async with running_agent(tmp_path, idle_seconds=IDLE_SECONDS) as worker:
        for number in range(10):
            await asyncio.sleep(30.5)
            engine = await worker.take(make_lease(f"j{number}"))
            engine.say(JobFinished(attempt=f"j{number}-1"))
            await eventually(lambda: not worker.agent.held)
        assert worker.plane.left_at == []


@in_virtual_time
async def test_a_worker_that_loads_its_model_is_not_idle(tmp_path: Path) -> None:
    async with running_agent(tmp_path, is_ready=False, idle_seconds=IDLE_SECONDS) as worker:
        worker.plane.may_leave.append(True)
        await asyncio.sleep(600.0)
        assert worker.plane.left_at == []
