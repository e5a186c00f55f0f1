"""A cloud's notices about the end of a machine, and the interface of their sources."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Spot(StrEnum):
    """The kinds of machines that may be taken away at short notice, by the cloud that announces it."""

    NONE = "none"
    AUTO = "auto"  # one of these clouds, if its metadata service answers
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    OTHER = "other"  # a provider whose only notice is SIGTERM


class NoticeKind(StrEnum):
    """Kind of an announcement of a cloud."""

    INTERRUPTION = "interruption"  # the cloud takes the machine away
    REBALANCE = "rebalance"  # the cloud is likely to take the machine away at some time


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Announcement of a cloud. `details` are its own words; `event_id` names it where it can be answered."""

    kind: NoticeKind
    details: str = ""
    event_id: str = ""


class NoticeSource(Protocol):
    """The metadata service of one cloud. Each method raises `ServerUnavailable` if it does not answer.

    `look` is repeated after `pause_seconds`, as the cloud's documents ask for.
    """

    cloud: Spot
    pause_seconds: float

    async def is_spot(self) -> bool:
        """Return whether this machine may be taken away, as the cloud itself says."""
        ...

    async def look(self) -> Notice | None:
        """Return the current notice, an interruption first; this may wait a while for one."""
        ...

    async def acknowledge(self, notice: Notice) -> None:
        """Tell the cloud that the machine has no more work, if it accepts such a message."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
