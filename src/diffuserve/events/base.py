"""The live bus: hints to look sooner, and progress that is not worth storing.

The stored event log is the truth. A message may be lost; whoever waits polls as well.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

QUEUE = "queue"
"""Something became ready to be claimed."""


OUTBOX = "outbox"
"""A webhook is to be sent."""


def job_topic(job_id: str) -> str:
    """Messages: `{"type": "changed"}`, `{"type": "progress", …}`, `{"type": "preview", …}`."""
    return f"job:{job_id}"


def worker_topic(worker_id: str) -> str:
    """Messages: `{"type": "cancel" | "lost", "job_id": …}`, `{"type": "drain"}`."""
    return f"worker:{worker_id}"


class Subscription(Protocol):
    """What was published on a topic since `__enter__`; the oldest messages go first when it overflows."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    async def get(self, timeout: float) -> Mapping[str, Any] | None:
        """The next message, or `None` after `timeout` seconds."""
        ...


class EventBus(Protocol):
    """Fan-out by topic."""

    @property
    def is_connected(self) -> bool:
        """Whether other control planes are heard, where there are any."""
        ...

    @property
    def num_dropped(self) -> int:
        """Messages that other control planes will not hear."""
        ...

    def publish(self, topic: str, message: Mapping[str, Any]) -> None: ...

    def subscribe(self, topic: str) -> Subscription: ...

    def is_watched(self, topic: str) -> bool:
        """Whether anybody is subscribed, so that what is costly to make is made for somebody."""
        ...

    def latest_progress(self, job_id: str) -> Mapping[str, Any] | None:
        """The newest `progress` message of a running job; forgotten once the job is final."""
        ...
