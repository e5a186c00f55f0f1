"""Rate limits by the generic cell rate algorithm (GCRA), a leaky bucket whose state is a single timestamp.

Each granted call adds one `interval` to its caller's debt, which shrinks as time passes. A call is granted
while the debt stays within a burst. So rates may be fractions, and the time to wait is known exactly. The
timestamp at which the debt is paid is GCRA's "theoretical arrival time" (ITU-T I.371).
"""

import math
from dataclasses import dataclass
from typing import Protocol

_ROUNDING = 1e-6
"""Seconds of tolerance, since sums of floating-point intervals are not exact."""


@dataclass(frozen=True)
class Rate:
    """The sustained number of calls per second, above 0; after a pause those of `window` seconds at once."""

    per_second: float
    window: float = 1.0

    @property
    def interval(self) -> float:
        """Seconds between two calls at exactly this rate."""
        return 1.0 / self.per_second

    @property
    def burst(self) -> int:
        """Number of calls that are granted at once after a pause: those of the window, and at least 1."""
        return max(1, math.floor(self.per_second * self.window))

    @property
    def burst_seconds(self) -> float:
        """Debt in seconds of a caller that has just used its whole burst."""
        return self.burst * self.interval

    @property
    def max_debt(self) -> float:
        """Largest debt in seconds with which a call is still granted."""
        return self.burst_seconds - self.interval + _ROUNDING


@dataclass(frozen=True)
class Allowance:
    """The decision on a call. `debt` is in seconds and includes the call if it was granted."""

    rate: Rate
    is_granted: bool
    debt: float

    @property
    def num_left(self) -> int:
        """Number of calls that would be granted now."""
        free = self.rate.burst_seconds - self.debt + _ROUNDING
        return max(0, math.floor(free / self.rate.interval))

    @property
    def retry_after(self) -> float:
        """Seconds until a call would be granted; 0 if it would be now."""
        return max(0.0, self.debt + self.rate.interval - self.rate.burst_seconds)


class Quotas(Protocol):
    """Rate limits by name. It raises nothing, and responds within a fraction of a second."""

    async def take(self, name: str, rate: Rate, count: int = 1) -> Allowance:
        """Grant a call and count it, or refuse it and count nothing.

        A call may count as several: it is granted as soon as one would be, and the next one waits for longer.
        One that counts as none asks whether a call would be granted.
        """
        ...
