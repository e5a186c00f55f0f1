"""Seeded days of jobs: a curve over the day, bursts, and the same weekday of the weeks before."""

import math
import random
from collections import defaultdict
from dataclasses import dataclass

from diffuserve.jobs.policy.scaling import HOUR, WEEK, WEEKS, bucket_of

DAY = 24.0 * HOUR
MONDAY = 1_767_571_200.0
"""Midnight (UTC) of the simulated day."""
KINDS = ((0.80, 3.0), (0.17, 15.0), (0.03, 150.0))
"""Shares of small images, large ones and clips, and the device-seconds of each."""
_MEAN_SECONDS = sum(share * seconds for share, seconds in KINDS)
_SWING = 0.8  # around the mean of the day, lowest at midnight
_NUM_BURSTS = 10
_BURST_SECONDS = (120.0, 900.0)
_STEP_SECONDS = 10
_SPREAD = 0.4  # of the logarithm of a job's seconds


@dataclass(frozen=True, slots=True)
class Job:
    """Job that needs so many device-seconds."""

    arrived_at: float
    seconds: float


@dataclass(frozen=True)
class Day:
    """Jobs of a day, and what was accepted by five minutes in earlier weeks."""

    jobs: tuple[Job, ...]
    history: dict[int, float]


def day(seed: int, busy_workers: float, burst: float, hours: float = 24.0) -> Day:
    """Return the first `hours` of a day whose work would keep `busy_workers` busy on average, without bursts.

    In a burst jobs arrive 2 to `burst` times as often. Every week has bursts of its own.
    """
    history: dict[int, float] = defaultdict(float)
    for week in range(1, WEEKS + 1):
        for job in _jobs(f"{seed} weeks ago {week}", busy_workers, burst, hours):
            history[bucket_of(job.arrived_at - week * WEEK)] += job.seconds
    return Day(tuple(_jobs(str(seed), busy_workers, burst, hours)), dict(history))


def _jobs(seed: str, busy_workers: float, burst: float, hours: float) -> list[Job]:
    """Draw arrivals, by chance in each ten seconds."""
    chance = random.Random(seed)
    bursts = [_burst(chance, burst) for _ in range(_NUM_BURSTS)]
    jobs = []
    for start in range(0, int(hours * HOUR), _STEP_SECONDS):
        rate = busy_workers / _MEAN_SECONDS * (1 - _SWING * math.cos(2 * math.pi * start / DAY))
        rate *= math.prod(factor for begin, end, factor in bursts if begin <= start < end)
        at = float(start)
        while (at := at + chance.expovariate(rate)) < start + _STEP_SECONDS:
            jobs.append(Job(MONDAY + at, _seconds(chance)))
    return jobs


def _burst(chance: random.Random, largest: float) -> tuple[float, float, float]:
    start = chance.uniform(0, DAY)
    return start, start + chance.uniform(*_BURST_SECONDS), chance.uniform(min(2.0, largest), largest)


def _seconds(chance: random.Random) -> float:
    shares, seconds = zip(*KINDS, strict=True)
    [kind] = chance.choices(seconds, shares)
    return float(kind) * chance.lognormvariate(-(_SPREAD**2) / 2, _SPREAD)
