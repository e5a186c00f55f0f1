"""What a fleet starts and takes back: a pure function of the workers that are wanted and that there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Start:
    """So many more workers are to be started."""

    count: int


@dataclass(frozen=True)
class Withdraw:
    """These workers, which the engine has not placed yet, are to be taken back; there may be none."""

    names: tuple[str, ...]


Order: TypeAlias = Start | Withdraw


@dataclass(frozen=True)
class FleetBounds:
    """Least and most workers of a fleet."""

    least: int
    most: int

    def of(self, wanted: int) -> int:
        """Return the nearest number within the bounds."""
        return min(max(wanted, self.least), self.most)


def plan(want: int, placed: int, waiting: Sequence[str]) -> Order:
    """Return what brings a fleet of `placed` workers, and of `waiting` ones, oldest first, to `want`.

    A worker that was placed is never ended, since it may have jobs: it leaves by itself when it is not
    needed. The latest of those that wait are taken back first.
    """
    missing = want - placed - len(waiting)
    if missing > 0:
        return Start(missing)
    return Withdraw(tuple(waiting[max(len(waiting) + missing, 0) :]))
