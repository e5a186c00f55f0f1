"""Reads whose result many callers share for a short time."""

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


def _has_failed(task: asyncio.Task[Value]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
