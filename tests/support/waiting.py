"""Waiting for progress: until a condition holds, however busy the machine is."""

import asyncio
import time
from collections.abc import Awaitable, Callable

HANG_SECONDS = 180.0
"""Seconds without progress after which a test counts as hung; far above what a busy machine takes."""

_PAUSE_SECONDS = 0.01
_BLOCKING_PAUSE_SECONDS = 0.03  # mostly for another process, which is slowed down by being asked


async def eventually(check: Callable[[], Awaitable[bool] | bool]) -> None:
    """Return once `check` returns true. Raise `TimeoutError` after `HANG_SECONDS`."""
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            result = check()
            if result if isinstance(result, bool) else await result:
                return
            await asyncio.sleep(_PAUSE_SECONDS)


def block_until(check: Callable[[], bool]) -> None:
    """Return once `check` returns true, without an event loop. Raise `TimeoutError` after `HANG_SECONDS`."""
    deadline = time.monotonic() + HANG_SECONDS
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition did not hold after {HANG_SECONDS:g} seconds")
        time.sleep(_BLOCKING_PAUSE_SECONDS)
