"""Ranges of waits that are widened by as much as recent ones turned out too narrow.

Seconds are predicted for a device that has nothing else to do. A machine that other programs use takes
several times as long, and no fixed factor is right for both. So the ends of recent jobs are compared with
what the jobs were told, as in conformal prediction (Gibbs and Candès, 2021, arXiv:2106.00170).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from diffuserve.domain.jobs.job import QueueEstimate

_LEAST_ENDS = 20
"""From so many on, ends count."""
_BEYOND = 0.07
"""The share of recent jobs that may end before their range, and after it."""
_MAX_FACTOR = 10.0


@dataclass(frozen=True)
class Told:
    """A range of seconds that a queued job was told at a second of the store's clock, not widened yet."""

    at: float
    low: float
    high: float

    def compare(self, ended_at: float) -> tuple[float, float]:
        """Return the seconds until the end as multiples of the low and of the high end."""
        seconds = ended_at - self.at
        return seconds / self.low, seconds / self.high


@dataclass(frozen=True)
class Widening:
    """Factors of the ends of a range: `low` in 0.1…1, `high` in 1…10."""

    low: float = 1.0
    high: float = 1.0

    def of(self, estimate: QueueEstimate) -> QueueEstimate:
        """Return the estimate with its range widened, if it has one."""
        if estimate.eta_s_low is None or estimate.eta_s_high is None:
            return estimate
        low, high = self.low * estimate.eta_s_low, self.high * estimate.eta_s_high
        return replace(estimate, eta_s_low=round(low, 3), eta_s_high=round(high, 3))


def widening_after(ends: Collection[tuple[float, float]]) -> Widening:
    """Return the least widening that holds all but a few of these ends, each as `Told.compare` returns it."""
    if len(ends) < _LEAST_ENDS:
        return Widening()
    num_beyond = int(_BEYOND * len(ends))
    low = sorted(low for low, _ in ends)[num_beyond]
    high = sorted(high for _, high in ends)[-1 - num_beyond]
    return Widening(min(max(low, 1 / _MAX_FACTOR), 1.0), min(max(high, 1.0), _MAX_FACTOR))
