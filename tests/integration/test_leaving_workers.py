"""Idle workers leave a real server one by one, down to what the model needs."""

import asyncio
from collections.abc import Callable

import httpx

from diffuserve.agent.agent import WorkerAgent
from diffuserve.domain.jobs.job import JobStatus
from support.plane import Plane, until
from support.waiting import eventually

Start = Callable[..., WorkerAgent]


def over(agent: WorkerAgent) -> "asyncio.Task[int]":
    task: asyncio.Task[int] = agent.over  # type: ignore[attr-defined]
    return task


async def test_of_three_idle_workers_the_one_that_is_needed_stays(plane: Plane, start: Start) -> None:
    agents = [start("--files", "1", idle_seconds=1.0) for _ in range(3)]
    await until(plane, await plane.submit(), JobStatus.SUCCEEDED)
    await eventually(lambda: sum(over(agent).done() for agent in agents) == 2)
    async with httpx.AsyncClient(base_url=plane.url) as http:
        size = (await http.get("/internal/v1/scale/null")).json()
    assert (size["workers"], size["num_live"]) == (1, 1)
    assert [over(agent).result() for agent in agents if over(agent).done()] == [0, 0]
    again = await until(plane, await plane.submit(), JobStatus.SUCCEEDED)
    assert again.attempt == 1
    assert sum(over(agent).done() for agent in agents) == 2


async def test_a_worker_finishes_its_job_while_it_would_be_too_many(plane: Plane, start: Start) -> None:
    busy = start("--seconds", "60", idle_seconds=1.0)
    job = await plane.submit()
    await until(plane, job, JobStatus.RUNNING)
    await eventually(lambda: job.id in busy.held)
    idle = [start("--seconds", "60", idle_seconds=1.0) for _ in range(2)]
    await eventually(lambda: all(over(agent).done() for agent in idle))
    assert job.id in busy.held
    assert not over(busy).done()
