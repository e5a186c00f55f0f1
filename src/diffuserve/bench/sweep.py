"""The highest rate that keeps an objective: doubled until it breaks, then halved between."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Probe:
    """A rate that was tried, in requests a second, and whether it kept the objective."""

    rate: float
    is_kept: bool


def next_rate(probes: Sequence[Probe], first: float, precision: float) -> float | None:
    """Return the rate to try next; None once the knee is known to `precision`, a share of it in 0…1.

    Rates double from `first` while they keep the objective, or halve while they break it, and then the
    middle of the best and the worst is tried, by their ratio, as a knee is looked at.
    """
    kept, broken = knee(probes), _lowest_broken(probes)
    if kept is None and broken is None:
        return first
    if broken is None:
        return 2 * (kept or first)
    if kept is None:
        return broken / 2 if broken > first / 1024 else None
    return None if broken <= kept * (1 + precision) else (kept * broken) ** 0.5


def knee(probes: Sequence[Probe]) -> float | None:
    """Return the highest rate below every one that broke the objective."""
    limit = _lowest_broken(probes)
    kept = [probe.rate for probe in probes if probe.is_kept and (limit is None or probe.rate < limit)]
    return max(kept, default=None)


def _lowest_broken(probes: Sequence[Probe]) -> float | None:
    return min((probe.rate for probe in probes if not probe.is_kept), default=None)
