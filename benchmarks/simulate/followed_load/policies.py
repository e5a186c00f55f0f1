"""Ways to choose a number of workers: those of Kubernetes and KEDA, and the product's own."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from diffuserve.jobs.policy.scaling import Floor, PoolDemand, ScaleConfig, desired_workers

POLL_SECONDS = 15.0
"""Interval of the HorizontalPodAutoscaler, and of KEDA as it is set in `deploy/kubernetes`."""
_TOLERANCE = 0.1  # of the HorizontalPodAutoscaler


@dataclass(frozen=True)
class Seen:
    """State of a fleet as an autoscaler sees it. Workers that stop are not counted.

    `num_ready` have loaded their model; `accepted` is the work by five minutes, earlier weeks included.
    """

    now: float
    num_queued: int
    queued_seconds: float
    running_seconds: float
    num_workers: int
    num_ready: int
    num_busy: int
    accepted: Mapping[int, float]


class Policy(Protocol):
    """Way to choose how many workers there are."""

    def change(self, seen: Seen) -> int:
        """Return how many workers to start, or, if negative, to stop whatever they do."""
        ...

    def may_leave(self, seen: Seen) -> bool:
        """Return whether one worker that is idle may leave."""
        ...


@dataclass
class Fixed:
    """Keeps as many workers as there are."""

    def change(self, seen: Seen) -> int:
        return 0

    def may_leave(self, seen: Seen) -> bool:
        return False


Metric = Callable[[Seen], int]
"""Number of workers that one metric asks for."""


def average_value(target: float) -> Metric:
    """Return a metric of so many queued jobs for each worker (`AverageValue`)."""

    def wanted(seen: Seen) -> int:
        usage = seen.num_queued / target
        return seen.num_workers if _is_close(usage, seen.num_workers) else math.ceil(usage)

    return wanted


def utilization(target: float) -> Metric:
    """Return a metric of the share of ready workers that are busy (`Value`)."""

    def wanted(seen: Seen) -> int:
        if not seen.num_ready:
            return seen.num_workers
        ratio = seen.num_busy / seen.num_ready / target
        return seen.num_workers if _is_close(ratio, 1.0) else math.ceil(seen.num_ready * ratio)

    return wanted


def _is_close(usage: float, present: float) -> bool:
    return present > 0 and abs(usage / present - 1.0) <= _TOLERANCE


@dataclass
class Kubernetes:
    """The HorizontalPodAutoscaler over some metrics, the largest of which counts.

    Going up it follows the lowest wish of `up_window` seconds, at most `up_most(workers)` in `up_period`;
    going down the highest of `down_window`, at most `down_most` in `down_period`.
    """

    metrics: tuple[Metric, ...]
    least: int
    most: int
    up_window: float = 0.0
    up_most: Callable[[int], int] = lambda present: max(present, 4)
    up_period: float = POLL_SECONDS
    down_window: float = 300.0
    down_most: int = 1_000
    down_period: float = POLL_SECONDS
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)
    _up_at: float = -math.inf
    _down_at: float = -math.inf

    def change(self, seen: Seen) -> int:
        wanted = max(self.least, min(self.most, max(metric(seen) for metric in self.metrics)))
        self._wanted.append((seen.now, wanted))
        while self._wanted[0][0] <= seen.now - max(self.up_window, self.down_window):
            self._wanted.popleft()
        up, down = self._wished(seen.now, self.up_window, min), self._wished(seen.now, self.down_window, max)
        if up > seen.num_workers and seen.now - self._up_at >= self.up_period:
            self._up_at = seen.now
            return min(up - seen.num_workers, self.up_most(seen.num_workers))
        if down < seen.num_workers and seen.now - self._down_at >= self.down_period:
            self._down_at = seen.now
            return -min(seen.num_workers - down, self.down_most)
        return 0

    def may_leave(self, seen: Seen) -> bool:
        return False

    def _wished(self, now: float, window: float, pick: Callable[[list[int]], int]) -> int:
        recent = [wanted for at, wanted in self._wanted if at > now - window]
        return pick(recent or [self._wanted[-1][1]])


@dataclass
class ScaledJob:
    """KEDA's ScaledJob on the product's policy: it starts what is missing, and idle workers leave."""

    config: ScaleConfig
    load_seconds: float
    floors: tuple[Floor, ...] = ()
    most: int = 20

    def change(self, seen: Seen) -> int:
        return max(min(self._desired(seen), self.most) - seen.num_workers, 0)

    def may_leave(self, seen: Seen) -> bool:
        return seen.num_workers > self._desired(seen)

    def _desired(self, seen: Seen) -> int:
        demand = PoolDemand(
            queued_seconds=seen.queued_seconds,
            running_seconds=seen.running_seconds,
            load_seconds=self.load_seconds,
            accepted=seen.accepted,
            known_since=0.0,
        )
        return desired_workers(demand, seen.now, self.floors, self.config).total
