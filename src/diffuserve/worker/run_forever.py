"""Loops that outlive what goes wrong in them."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from diffuserve.domain.errors import DiffuserveError

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0


async def run_forever(loop: Callable[[], Awaitable[None]]) -> None:
    """Begin again after every failure, until `loop` returns: a silent worker is worse than a log's line."""
    pause = _FIRST_PAUSE
    while True:
        started = time.monotonic()
        try:
            await loop()
            return
        except DiffuserveError as error:
            log.warning("%s", error)
        except Exception:
            log.exception("a loop of the worker failed; it goes on")
        if time.monotonic() - started > _LONGEST_PAUSE:
            pause = _FIRST_PAUSE
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
