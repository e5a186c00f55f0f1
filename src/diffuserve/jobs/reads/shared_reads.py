"""Reads whose result many callers share."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from cachetools import TTLCache

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_MAX_KEYS = 10_000


class SharedReads(Generic[Key, Value]):
    """Reads a value for each key at most once in `seconds`, also for callers that come at the same time."""

    def __init__(
        self,
        read: Callable[[Key], Awaitable[Value]],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives the time in tests."""
        self._read = read
        self._tasks: TTLCache[Key, asyncio.Task[Value]] = TTLCache(_MAX_KEYS, seconds, clock)

    async def get(self, key: Key) -> Value:
        """Return the value, at most `seconds` old. Raise what the read raises; errors are not kept."""
        task = self._tasks.get(key)
        if task is None or _has_failed(task):
            task = self._tasks[key] = asyncio.ensure_future(self._read_now(key))
        if task.done():
            return task.result()
        return await asyncio.shield(task)  # a caller that is canceled takes the read from nobody else

    async def _read_now(self, key: Key) -> Value:
        return await self._read(key)


class FreshReads(Generic[Value]):
    """Reads a value that is newer than the call, at most once in `seconds`, for all who wait meanwhile."""

    def __init__(self, read: Callable[[], Awaitable[Value]], seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        self._earliest = 0.0
        self._next: asyncio.Task[Value] | None = None

    async def get(self) -> Value:
        """Return the value as it was after this call began. Raise what the read raises."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._read_when_due())
        return await asyncio.shield(self._next)

    async def _read_when_due(self) -> Value:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._earliest - loop.time())
        self._earliest = loop.time() + self._seconds
        self._next = None  # who comes from here on needs a later read
        return await self._read()


def _has_failed(task: asyncio.Task[Value]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
