"""Retries of calls that fail and restarts of work that ends, with exponential backoff between them."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import stamina
from stamina.instrumentation import set_on_retry_hooks

# Callers log their own retries. The default hooks would print each one to stdout where structlog is
# installed, and so spoil output that programs read. An application's own hooks are set after this import.
set_on_retry_hooks(())

T = TypeVar("T")
_chance = random.Random()  # noqa: S311 (jitter is no secret); not the program's own, whose state it may use


def jitter(low: float, high: float) -> float:
    """Return a number between two by chance, so that those that begin together do not go on together."""
    return _chance.uniform(low, high)


@dataclass(frozen=True)
class Backoff:
    """Pauses that double from `first_seconds` up to `longest_seconds`.

    `jitter`, in [0, 1], is the largest fraction that chance may take off a pause, so that clients that
    failed together do not come back together.
    """

    first_seconds: float
    longest_seconds: float
    jitter: float = 0.0

    def pause_seconds(self, num_failures: int) -> float:
        """Return the pause after `num_failures` failures in a row, which is at least 1, without jitter."""
        exponent = min(num_failures - 1, 60)  # a float holds no more than about 2**1023
        return min(self.first_seconds * 2.0**exponent, self.longest_seconds)

    def jittered(self, seconds: float) -> float:
        return seconds * jitter(1.0 - self.jitter, 1.0)


async def retry(
    work: Callable[[int], Awaitable[T]],
    on: Callable[[Exception], float | None],
    backoff: Backoff,
    patience_seconds: float,
) -> T:
    """Await `work(attempt)`, with attempts counted from 1, until it succeeds, and return its result.

    `on(error)` returns `None` for an error that no retry helps, else the shortest pause in seconds that
    the failure asks for, such as a `Retry-After`. Raise the last error if it is not to be retried, or if
    the next pause would end more than `patience_seconds` after the start.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience_seconds

    def pause_after(error: BaseException) -> float | bool:
        at_least = on(error) if isinstance(error, Exception) else None
        if at_least is None:
            return False
        pause = backoff.jittered(max(attempt.next_wait, at_least))
        return pause if clock() + pause <= deadline else False

    # The first attempt is made outside stamina, whose machinery costs over 100 µs a call: most calls succeed
    # at once, and a job takes several of them (each read of the database is one).
    try:
        return await work(1)
    except Exception as error:
        first_error = error
    async for attempt in stamina.retry_context(
        on=pause_after,
        attempts=None,
        timeout=None,  # stamina checks it only after a pause; `pause_after` checks it before
        wait_initial=backoff.first_seconds,
        wait_max=backoff.longest_seconds,
        wait_jitter=0.0,
    ):
        with attempt:
            if attempt.num == 1:
                raise first_error
            return await work(attempt.num)
    raise AssertionError("unreachable: stamina raises the last error")


@dataclass(frozen=True)
class RestartPolicy:
    """Limits on starting work again that has ended.

    Work that ran longer than `healthy_seconds` counts as healthy: pauses and the count of restarts begin
    anew after it. `max_in_a_row` limits restarts without a healthy run between them; `None` is no limit.
    """

    backoff: Backoff
    healthy_seconds: float
    max_in_a_row: int | None = None


async def supervise(
    run: Callable[[], Awaitable[T]],
    policy: RestartPolicy,
    *,
    is_final: Callable[[T], bool] = lambda _result: False,
    on_restart: Callable[[T, float], None] = lambda _result, _pause_seconds: None,
    stop: asyncio.Event | None = None,
) -> T:
    """Await `run()` again whenever it ended, and return its last result.

    The last one is a result that `is_final`, one after which the policy allows no restart, or the first
    one after `stop` was set, which also ends a pause. `on_restart(result, pause_seconds)` is called
    before each pause. An exception of `run` is not caught.
    """
    clock = asyncio.get_running_loop().time
    num_in_a_row = 0
    while True:
        started_at = clock()
        result = await run()
        if clock() - started_at > policy.healthy_seconds:
            num_in_a_row = 0
        if is_final(result) or _is_set(stop) or num_in_a_row == policy.max_in_a_row:
            return result
        num_in_a_row += 1
        pause_seconds = policy.backoff.jittered(policy.backoff.pause_seconds(num_in_a_row))
        on_restart(result, pause_seconds)
        await _sleep(pause_seconds, stop)
        if _is_set(stop):
            return result


def _is_set(stop: asyncio.Event | None) -> bool:
    return stop is not None and stop.is_set()


async def _sleep(seconds: float, stop: asyncio.Event | None) -> None:
    """Sleep, but no longer than until `stop` is set."""
    if stop is None:
        return await asyncio.sleep(seconds)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
