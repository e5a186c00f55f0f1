"""The interface of event buses: notifications of changes, and progress that is not worth storing.

The database is authoritative. A message may be lost, so subscribers poll the database as well.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self

QUEUE = "queue"
"""Topic: a job became ready to be claimed, an interactive one if it is `urgent`."""

OUTBOX = "outbox"
"""Topic: a webhook was added to the outbox."""


def job_topic(job_id: str) -> str:
    """Return a job's topic.

    Messages: `{"type": "changed", "status": …}` and `{"type": "progress" | "preview" | "live", …}`.
    """
    return f"job:{job_id}"


def watch_topic(job_id: str) -> str:
    """Return the topic that has subscriptions while a job's progress is watched, and never a message."""
    return f"watch:{job_id}"


def worker_topic(worker_id: str) -> str:
    """Return a worker's topic.

    Messages: `{"type": "cancel" | "preempt" | "lost", "job_id": …}` and `{"type": "drain"}`.
    """
    return f"worker:{worker_id}"


class Subscription(Protocol):
    """A queue of the messages published on a topic since `__enter__`; when full it drops the oldest."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    async def get(self, timeout: float) -> Mapping[str, Any] | None:
        """Return the next message, or `None` after `timeout` seconds without any."""
        ...


class EventBus(Protocol):
    """Delivers each message to all subscriptions to its topic."""

    @property
    def is_connected(self) -> bool:
        """True if messages of other control planes arrive; always true for a single control plane."""
        ...

    @property
    def num_dropped(self) -> int:
        """Number of messages that were not sent to other control planes."""
        ...

    def publish(self, topic: str, message: Mapping[str, Any]) -> None:
        """Deliver `message` to the subscriptions to `topic`, without waiting."""
        ...

    def subscribe(self, topic: str) -> Subscription:
        """Return a subscription, which receives messages from its `__enter__` on."""
        ...

    def listen(
        self, topic: str, listener: Callable[[Mapping[str, Any]], None]
    ) -> AbstractContextManager[object]:
        """Call `listener` with each message on the topic while the context is open.

        It is called within `publish`, so it neither waits nor raises.
        """
        ...

    def is_watched(self, topic: str) -> bool:
        """Return whether the topic has subscriptions, so that costly messages are made only for these."""
        ...

    def latest_progress(self, job_id: str) -> Mapping[str, Any] | None:
        """Return the newest `progress` message of a running job; `None` once its status has changed."""
        ...
