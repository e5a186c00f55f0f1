"""Changes of the waiting and running work by a transaction, for reads that began before its commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto


class Moved(Enum):
    """What became of jobs of a lane."""

    IN = auto()
    OUT = auto()
    CLAIMED = auto()
    ENDED = auto()
    """They ran, and their leases ended: they are in no lane."""


@dataclass(frozen=True)
class LaneChange:
    """Jobs that came into a lane, left it, were claimed out of it, or ended.

    `jobs` are their places and predicted device-seconds. The other fields are those of a lane's row.
    """

    lane: str
    moved: Moved
    jobs: Sequence[tuple[int, float]]
    band: str = ""
    tenant_id: str = ""
    model: str | None = None
    is_decode: bool = False

    @property
    def num_added(self) -> int:
        """Number of jobs that the lane has more."""
        return len(self.jobs) if self.moved is Moved.IN else -len(self.jobs)

    @property
    def seconds_added(self) -> float:
        """Device-seconds that the lane has more."""
        seconds = sum(seconds for _, seconds in self.jobs)
        return seconds if self.moved is Moved.IN else -seconds
