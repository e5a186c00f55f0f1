"""A bounded queue of messages to be sent."""

import asyncio
from collections import deque

_MAX_BATCH_BYTES = 1 << 20


class SendBuffer:
    """Holds messages of up to `max_bytes` in all; when full it drops the oldest, and counts them."""

    def __init__(self, max_bytes: int) -> None:
        self.num_dropped = 0
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._items: deque[bytes] = deque()
        self._arrived = asyncio.Event()

    @property
    def num_bytes(self) -> int:
        """Size in bytes of all messages that the buffer holds."""
        return self._num_bytes

    def put(self, item: bytes) -> None:
        """Append a message, and drop the oldest ones as long as the buffer is too large."""
        self._items.append(item)
        self._num_bytes += len(item)
        while self._num_bytes > self._max_bytes:
            self._pop()
            self.num_dropped += 1
        self._arrived.set()

    async def take(self, timeout: float) -> list[bytes]:
        """Remove and return the oldest messages, about 1 MiB; `[]` after `timeout` seconds without any."""
        if not self._items:
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        batch: list[bytes] = []
        size = 0
        while self._items and size < _MAX_BATCH_BYTES:
            batch.append(self._pop())
            size += len(batch[-1])
        return batch

    def clear(self) -> None:
        """Drop all messages, and count them as dropped."""
        self.num_dropped += len(self._items)
        self._items.clear()
        self._num_bytes = 0

    def _pop(self) -> bytes:
        item = self._items.popleft()
        self._num_bytes -= len(item)
        return item
