"""The bus of a single control plane: queues in memory."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

_MAX_MESSAGES = 256
_MAX_PROGRESS = 10_000


class MemorySubscription:
    """Used by one task of the event loop that publishes."""

    def __init__(self, bus: "MemoryEventBus", topic: str) -> None:
        self._bus = bus
        self._topic = topic
        self._messages: deque[Mapping[str, Any]] = deque(maxlen=_MAX_MESSAGES)
        self._arrived = asyncio.Event()

    def __enter__(self) -> Self:
        self._bus.subscriptions.setdefault(self._topic, set()).add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        others = self._bus.subscriptions[self._topic]
        others.discard(self)
        if not others:
            del self._bus.subscriptions[self._topic]

    def put(self, message: Mapping[str, Any]) -> None:
        self._messages.append(message)
        self._arrived.set()

    async def get(self, timeout: float) -> Mapping[str, Any] | None:
        if not self._messages:
            self._arrived.clear()
            try:
                async with asyncio.timeout(max(timeout, 0.0)):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        return self._messages.popleft()


class MemoryEventBus:
    """Everything happens on one event loop, so no lock is needed."""

    is_connected = True
    num_dropped = 0

    def __init__(self) -> None:
        self.subscriptions: dict[str, set[MemorySubscription]] = {}
        self._progress: OrderedDict[str, Mapping[str, Any]] = OrderedDict()

    def publish(self, topic: str, message: Mapping[str, Any]) -> None:
        self._remember(topic, message)
        for subscription in list(self.subscriptions.get(topic, ())):
            subscription.put(message)

    def subscribe(self, topic: str) -> MemorySubscription:
        return MemorySubscription(self, topic)

    def is_watched(self, topic: str) -> bool:
        return topic in self.subscriptions

    def latest_progress(self, job_id: str) -> Mapping[str, Any] | None:
        return self._progress.get(f"job:{job_id}")

    def _remember(self, topic: str, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "progress":
            self._progress[topic] = message
            self._progress.move_to_end(topic)
            if len(self._progress) > _MAX_PROGRESS:
                self._progress.popitem(last=False)
        elif kind == "changed":  # a new status: what the last attempt reported is history
            self._progress.pop(topic, None)
