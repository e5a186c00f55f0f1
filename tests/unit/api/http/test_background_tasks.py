"""Tasks that outlive their request."""

import asyncio

import pytest

from diffuserve.api.http.background_tasks import BackgroundTasks


async def test_finish_waits_for_every_task() -> None:
    tasks, done = BackgroundTasks(), []

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        done.append(number)

    for number in range(3):
        tasks.start(work(number))
    assert done == []
    await tasks.finish()
    assert sorted(done) == [0, 1, 2]


async def test_a_failure_is_logged_and_stops_no_other_task(caplog: pytest.LogCaptureFixture) -> None:
    tasks, done = BackgroundTasks(), asyncio.Event()

    async def fail() -> None:
        raise ValueError("it broke")

    async def succeed() -> None:
        done.set()

    tasks.start(fail())
    tasks.start(succeed())
    await tasks.finish()
    assert done.is_set()
    assert "background task failed" in caplog.text
