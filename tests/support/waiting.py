"""Waiting for progress: until a condition holds, however busy the machine is."""

import asyncio
import time
from collections.abc import Awaitable, Callable

HANG_SECONDS = 180.0
"""Seconds without progress after which a test counts as hung; far above what a busy machine takes."""

_PAUSE_SECONDS = 0.01
_BLOCKING_PAUSE_SECONDS = 0.03  # mostly for another process, which is slowed down by being asked
_LONGEST_PAUSE_SECONDS = 0.1
_SHARE_OF_WAIT = 0.05
"""Seconds of a pause per second waited so far: to be asked all the time slows down what is waited for."""


async def eventually(check: Callable[[], Awaitable[bool] | bool]) -> None:
    """Return once `check` returns true. Raise `TimeoutError` after `HANG_SECONDS`."""
    began_at = time.monotonic()  # also in virtual time, in which pauses stay short
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            result = check()
            if result if isinstance(result, bool) else await result:
                return
            await asyncio.sleep(_pause_seconds(began_at, _PAUSE_SECONDS))


def block_until(check: Callable[[], bool]) -> None:
    """Return once `check` returns true, without an event loop. Raise `TimeoutError` after `HANG_SECONDS`."""
    began_at = time.monotonic()
    while not check():
        if time.monotonic() > began_at + HANG_SECONDS:
            raise TimeoutError(f"the condition did not hold after {HANG_SECONDS:g} seconds")
        time.sleep(_pause_seconds(began_at, _BLOCKING_PAUSE_SECONDS))


def _pause_seconds(began_at: float, least: float) -> float:
    """Return how long to wait before the next look, from `least` on: longer, the longer it has taken."""
    return min(max(least, _SHARE_OF_WAIT * (time.monotonic() - began_at)), _LONGEST_PAUSE_SECONDS)
