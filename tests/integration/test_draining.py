"""Workers that drain, by themselves or told by an operator: real agents and engines that generate nothing."""

import asyncio
from collections.abc import Callable

import psutil

from diffuserve.agent.agent import WorkerAgent
from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.main import open_agent
from diffuserve.domain.jobs.job import JobStatus
from support.plane import NULL_ENGINE, Plane, until
from support.waiting import HANG_SECONDS, eventually

Start = Callable[..., WorkerAgent]


async def test_a_drain_kills_an_engine_that_is_still_starting(plane: Plane, start: Start) -> None:
    agent = start(engine_command=(), model="tiny-flux", device="cpu")
    me = psutil.Process()

    def engines() -> list[psutil.Process]:
        return [c for c in me.children() if "diffuserve.engine_process.start.main" in " ".join(c.cmdline())]

    await eventually(lambda: bool(engines()))
    agent.drain()
    async with asyncio.timeout(HANG_SECONDS):
        assert await asyncio.shield(agent.over) == 0  # type: ignore[attr-defined]
    await eventually(lambda: not engines())


async def test_a_program_runs_an_agent_on_a_thread_of_its_own_and_drains_it(plane: Plane) -> None:
    """Python installs handlers of signals on the main thread alone."""
    opened: list[tuple[WorkerAgent, asyncio.AbstractEventLoop]] = []

    async def work() -> int:
        async with open_agent(WorkerConfig(server=plane.url, engine_command=NULL_ENGINE)) as agent:
            opened.append((agent, asyncio.get_running_loop()))
            return await agent.run()

    running = asyncio.create_task(asyncio.to_thread(asyncio.run, work()))
    await until(plane, await plane.submit(), JobStatus.SUCCEEDED)
    [(agent, loop)] = opened
    loop.call_soon_threadsafe(agent.drain)
    async with asyncio.timeout(HANG_SECONDS):
        assert await running == 0


async def test_a_drain_finishes_what_fits_and_hands_back_the_rest(plane: Plane, start: Start) -> None:
    agent = start("--seconds", "1.2", drain_seconds=HANG_SECONDS, max_jobs=1)
    short, waiting = await plane.submit(), await plane.submit()
    await until(plane, short, JobStatus.RUNNING)
    await eventually(lambda: bool(agent.held))
    agent.drain()
    async with asyncio.timeout(HANG_SECONDS):
        assert await asyncio.shield(agent.over) == 0  # type: ignore[attr-defined]
    assert await plane.status(short) is JobStatus.SUCCEEDED
    assert await plane.status(waiting) is JobStatus.QUEUED

    impatient = start("--seconds", "60", drain_seconds=0.2)
    await until(plane, waiting, JobStatus.RUNNING)
    await eventually(lambda: bool(impatient.held))
    impatient.drain()
    async with asyncio.timeout(HANG_SECONDS):
        await asyncio.shield(impatient.over)  # type: ignore[attr-defined]
    causes = [event.data.get("cause") for event in await plane.store.jobs.events_after(waiting.id)]
    assert causes[-1] == "drain"
    assert await plane.status(waiting) is JobStatus.QUEUED


async def test_an_operators_drain_ends_a_worker_once_its_job_is_done(plane: Plane, start: Start) -> None:
    agent = start("--seconds", "1.2", drain_seconds=HANG_SECONDS, max_jobs=1)
    held = await plane.submit()
    await until(plane, held, JobStatus.RUNNING)
    [worker] = await plane.store.operations.workers()
    await plane.store.leases.drain(worker.id)
    waiting = await plane.submit()
    async with asyncio.timeout(HANG_SECONDS):
        assert await asyncio.shield(agent.over) == 0  # type: ignore[attr-defined]
    assert [await plane.status(job) for job in (held, waiting)] == [JobStatus.SUCCEEDED, JobStatus.QUEUED]
    assert await plane.store.operations.workers() == []
