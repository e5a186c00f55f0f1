"""When requests arrive: pure functions of a rate, a burstiness and a seed."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from diffuserve.domain.errors import InvalidParams

MAX_RATE = 10_000.0
"""Most requests a second."""


@dataclass(frozen=True)
class Ramp:
    """A rate that changes evenly from `first` to `last` requests a second over `seconds`, then stays."""

    first: float
    last: float
    seconds: float

    @classmethod
    def steady(cls, rate: float) -> "Ramp":
        """Return a rate that does not change."""
        return cls(rate, rate, 0.0)

    def __post_init__(self) -> None:
        for rate in (self.first, self.last):
            if not 0 < rate <= MAX_RATE:
                raise InvalidParams(
                    "request_rate", rate, f"must be above 0 and at most {MAX_RATE:g} a second"
                )

    def second_of(self, count: float) -> float:
        """Return when `count` requests are due: the inverse of the rate's integral."""
        if self.seconds == 0:
            return count / self.last
        risen = (self.first + self.last) / 2 * self.seconds
        if count >= risen:
            return self.seconds + (count - risen) / self.last
        slope = (self.last - self.first) / self.seconds
        # The root of first * t + slope / 2 * t² = count, in the form that loses no digits for a small slope.
        return 2 * count / (self.first + math.sqrt(self.first**2 + 2 * slope * count))


def arrivals(ramp: Ramp, burstiness: float | None, seed: int) -> Iterator[float]:
    """Yield the seconds at which requests arrive, without end.

    The gaps are of a gamma distribution with the shape `burstiness`: 1 is a Poisson process, less comes in
    bursts, more is more even; `None` is a constant rate. A rate that changes stretches the same draws
    (time rescaling: Brown et al., 2002).
    """
    if burstiness is not None and not 0.01 <= burstiness <= 1000:
        raise InvalidParams("burstiness", burstiness, "must be in 0.01…1000; 1 is a Poisson process")
    clock, due = random.Random(f"arrivals {seed}"), 0.0  # noqa: S311 (a load, not a secret)
    while True:
        due += 1.0 if burstiness is None else clock.gammavariate(burstiness, 1 / burstiness)
        yield ramp.second_of(due)


def until(seconds: float, times: Iterator[float]) -> Iterator[float]:
    """Yield the times before `seconds`."""
    return takewhile(lambda time: time < seconds, times)
