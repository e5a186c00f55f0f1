"""Notices of a cloud about the end of a machine, and the interface of those that ask for them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Spot(StrEnum):
    """Answer to whether a machine may be taken away at short notice, and by whom that is announced."""

    NONE = "none"
    AUTO = "auto"  # one of these clouds, if its metadata service answers
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    OTHER = "other"  # by a provider that gives no notice but SIGTERM


class NoticeKind(StrEnum):
    """Kind of an announcement of a cloud."""

    INTERRUPTION = "interruption"  # it takes the machine away
    REBALANCE = "rebalance"  # it is likelier than before to do so, some time


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
        """Return the notice that stands, an interruption first; it may wait for one for a while."""
        ...

    async def acknowledge(self, notice: Notice) -> None:
        """Tell the cloud that nothing is left to do here, where it wants to know."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
