"""How often somebody may ask: a leaky bucket (GCRA), whose whole state is one moment in time.

Each call puts a debt of one `interval` on its caller, and time pays it off. A call is granted while
the debt stays within a burst. So rates may be fractions, and the time to wait is known exactly.
"""

import math
from dataclasses import dataclass
from typing import Protocol

_ROUNDING = 1e-6
"""Seconds; sums of intervals are not exact."""


@dataclass(frozen=True)
class Rate:
    """So many calls a second for as long as one likes."""

    per_second: float

    @property
    def interval(self) -> float:
        return 1.0 / self.per_second

    @property
    def burst(self) -> int:
        """Calls at once after a pause: a second's worth, one at least."""
        return max(1, math.floor(self.per_second))

    @property
    def longest_debt(self) -> float:
        return self.burst * self.interval

    @property
    def granted_up_to(self) -> float:
        """The largest debt with which one may call."""
        return self.longest_debt - self.interval + _ROUNDING


@dataclass(frozen=True)
class Allowance:
    """What came of a call; `debt` is in seconds, that call included if it was granted."""

    rate: Rate
    is_granted: bool
    debt: float

    @property
    def num_left(self) -> int:
        """Calls that would be granted right now."""
        free = self.rate.longest_debt - self.debt + _ROUNDING
        return max(0, math.floor(free / self.rate.interval))

    @property
    def retry_after(self) -> float:
        """Seconds until a call is granted; 0 if one would be now."""
        return max(0.0, self.debt + self.rate.interval - self.rate.longest_debt)


class Quotas(Protocol):
    """Calls counted by name. Never raises, and never takes long."""

    async def take(self, name: str, rate: Rate) -> Allowance:
        """Count a call, unless that is refused."""
        ...
