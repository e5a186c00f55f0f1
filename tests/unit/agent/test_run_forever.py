"""A loop starts again after every failure, and ends when it returns."""

import asyncio

import pytest

from diffuserve.agent.run_forever import run_forever
from diffuserve.domain.errors import Conflict, ServerUnavailable
from support.virtual_time import in_virtual_time, now


def failing(*errors: Exception, seconds: float = 0.0) -> "Loop":
    return Loop(list(errors), seconds)


class Loop:
    """Raises each error in turn, `seconds` after its start, and then returns."""

    def __init__(self, errors: list[Exception], seconds: float) -> None:
        self.errors, self.seconds = errors, seconds
        self.started_at: list[float] = []

    async def __call__(self) -> None:
        self.started_at.append(now())
        await asyncio.sleep(self.seconds)
        if self.errors:
            raise self.errors.pop(0)


@in_virtual_time
async def test_a_loop_that_returns_is_not_repeated() -> None:
    loop = failing()
    await run_forever(loop)
    assert loop.started_at == [0.0]


@in_virtual_time
async def test_a_loop_that_fails_starts_again_with_backoff() -> None:
    loop = failing(*[RuntimeError("a bug")] * 6)
    await run_forever(loop)
    assert loop.started_at == [0.0, 0.5, 1.5, 3.5, 7.5, 12.5, 17.5]


@in_virtual_time
async def test_backoff_begins_anew_after_a_healthy_time() -> None:
    loop = failing(*[RuntimeError("a bug")] * 3, seconds=6.0)
    await run_forever(loop)
    assert loop.started_at == [0.0, 6.5, 13.0, 19.5]


@in_virtual_time
async def test_an_expected_error_is_a_warning_and_a_bug_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await run_forever(failing(Conflict("not now"), ServerUnavailable("away"), RuntimeError("a bug")))
    expected, bug = (record for record in caplog.records if record.name.endswith("run_forever"))
    assert (expected.levelname, expected.getMessage(), expected.exc_info) == (
        "WARNING",
        "not now",
        None,
    )
    assert (bug.levelname, bug.exc_info is not None) == ("ERROR", True)


@in_virtual_time
async def test_a_canceled_loop_ends() -> None:
    running = asyncio.create_task(run_forever(failing(seconds=1e6)))
    await asyncio.sleep(1.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
