"""Outages of the chaos run: frozen transactions, full disks, and a clock that is set ahead and back."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError

from benchmarks.chaos.audit import Records
from benchmarks.chaos.clock import Clock
from benchmarks.chaos.cluster import Server

_CATCH_SECONDS = 120.0
_SETTLE_SECONDS = 0.02  # for PostgreSQL to grant what it was about to grant
_RUN_ON = (0.003, 0.05)
_FULL_SECONDS = (1.0, 4.0)
_STEP_SECONDS = (8.0, 40.0)


async def freeze_in_transaction(
    victim: Server, records: Records, dice: random.Random, other_writes: Callable[[], Awaitable[float]]
) -> float | None:
    """Suspend a control plane while it has the lock; return the seconds until another one has written.

    The victim is continued afterwards. `None` if it was never caught with the lock.
    """
    deadline = time.monotonic() + _CATCH_SECONDS
    while time.monotonic() < deadline:
        victim.freeze()
        frozen_at = time.monotonic()
        try:
            if await _has_lock(victim, records):
                await other_writes()
                return time.monotonic() - frozen_at
        finally:
            victim.wake()
        await asyncio.sleep(dice.uniform(*_RUN_ON))
    return None


async def _has_lock(victim: Server, records: Records) -> bool:
    await asyncio.sleep(_SETTLE_SECONDS)
    with suppress(SQLAlchemyError, OSError):
        return await records.holds_lock(victim.pid)
    return False


async def fill_disk(victim: Server, dice: random.Random) -> None:
    """Let a control plane write to no file for a while."""
    victim.fill_disk()
    try:
        await asyncio.sleep(dice.uniform(*_FULL_SECONDS))
    finally:
        victim.empty_disk()


class ClockSteps:
    """Sets the database's clock back and ahead in turn."""

    def __init__(self, clock: Clock, dice: random.Random) -> None:
        self._clock, self._dice = clock, dice
        self._offset = 0.0
        self._is_next_back = True

    async def step(self) -> None:
        seconds = self._dice.uniform(*_STEP_SECONDS)
        self._offset += -seconds if self._is_next_back else seconds
        self._is_next_back = not self._is_next_back
        await self._clock.set(self._offset)
