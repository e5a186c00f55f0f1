"""The event bus of a single control plane: queues in memory."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from cachetools import FIFOCache

from diffuserve.events.base import job_topic

_MAX_MESSAGES = 256
_MAX_JOBS = 10_000


class _Receiver(ABC):
    """Receives the messages of a topic while its context is open."""

    def __init__(self, bus: "MemoryEventBus", topic: str) -> None:
        self._bus = bus
        self._topic = topic

    def __enter__(self) -> Self:
        self._bus.subscriptions.setdefault(self._topic, set()).add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        subscriptions = self._bus.subscriptions[self._topic]
        subscriptions.discard(self)
        if not subscriptions:
            del self._bus.subscriptions[self._topic]

    @abstractmethod
    def put(self, message: Mapping[str, Any]) -> None:
        """Take a message, without waiting."""


class _Listener(_Receiver):
    """Passes each message to a function."""

    def __init__(
        self, bus: "MemoryEventBus", topic: str, listener: Callable[[Mapping[str, Any]], None]
    ) -> None:
        super().__init__(bus, topic)
        self._listener = listener

    def put(self, message: Mapping[str, Any]) -> None:
        self._listener(message)


class MemorySubscription(_Receiver):
    """A subscription used by a single task, on the event loop that publishes."""

    def __init__(self, bus: "MemoryEventBus", topic: str) -> None:
        super().__init__(bus, topic)
        self._messages: deque[Mapping[str, Any]] = deque(maxlen=_MAX_MESSAGES)
        self._arrived = asyncio.Event()

    def put(self, message: Mapping[str, Any]) -> None:
        """Append a message, and wake the task that waits for one."""
        self._messages.append(message)
        self._arrived.set()

    async def get(self, timeout: float) -> Mapping[str, Any] | None:
        """Return the next message, or `None` after `timeout` seconds without any."""
        if not self._messages:
            self._arrived.clear()
            try:
                async with asyncio.timeout(max(timeout, 0.0)):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        return self._messages.popleft()


class MemoryEventBus:
    """Runs on a single event loop, so no lock is needed."""

    is_connected = True
    num_dropped = 0

    def __init__(self) -> None:
        self.subscriptions: dict[str, set[_Receiver]] = {}
        self._progress: FIFOCache[str, Mapping[str, Any]] = FIFOCache(_MAX_JOBS)

    def publish(self, topic: str, message: Mapping[str, Any]) -> None:
        """Deliver `message` to the subscriptions to `topic`."""
        self._store_progress(topic, message)
        for subscription in list(self.subscriptions.get(topic, ())):
            subscription.put(message)

    def subscribe(self, topic: str) -> MemorySubscription:
        """Return a subscription, which receives messages from its `__enter__` on."""
        return MemorySubscription(self, topic)

    def listen(
        self, topic: str, listener: Callable[[Mapping[str, Any]], None]
    ) -> AbstractContextManager[object]:
        """Call `listener` with each message on the topic while the context is open."""
        return _Listener(self, topic, listener)

    def is_watched(self, topic: str) -> bool:
        """Return whether the topic has subscriptions."""
        return topic in self.subscriptions

    def latest_progress(self, job_id: str) -> Mapping[str, Any] | None:
        """Return the newest `progress` message of a running job; `None` once its status has changed."""
        return self._progress.get(job_topic(job_id))

    def _store_progress(self, topic: str, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "progress":
            self._progress[topic] = message
        elif kind == "changed":  # the progress belongs to an attempt that is over
            self._progress.pop(topic, None)
