"""The number of workers that a pool should have: pure functions of its work, history and floors.

A pool is the workers of one model. An autoscaler asks for the number, and the simulator of fleets
(`benchmarks/autoscaling`) uses the same functions.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from diffuserve.options import option

BUCKET_SECONDS = 300
"""Accepted work is counted by five minutes."""
RATE_SECONDS = 300.0
"""The rate of accepted work is that of the last five to ten minutes."""
HOUR = 3_600
WEEK = 168 * HOUR
WEEKS = 4
_LEAD_SECONDS = 600  # a predicted hour counts before it begins, as machines and models take minutes to start
_QUANTILE = 0.75  # the second highest of four weeks, so that one burst does not set the floor for a month
_EPOCH_WEEKDAY = 3  # 1 January 1970 was a Thursday
_ALL_DAYS = (0, 1, 2, 3, 4, 5, 6)


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Minimum number of workers from `start_hour` to `end_hour`, in UTC, on some days; 0 is Monday."""

    workers: int
    days: tuple[int, ...] = _ALL_DAYS
    start_hour: int = 0
    end_hour: int = 24

    def __post_init__(self) -> None:
        """Raise `ValueError` for a number below 0, unknown days, and hours that do not follow each other."""
        if self.workers < 0:
            raise ValueError(f"{self.workers} workers: must be 0 or more")
        if unknown := set(self.days) - set(_ALL_DAYS):
            raise ValueError(f"day {min(unknown)}: must lie in 0 (Monday) to 6 (Sunday)")
        if not 0 <= self.start_hour < self.end_hour <= 24:
            raise ValueError(
                f"hours {self.start_hour} to {self.end_hour}: must lie in 0…24, the end after the start; "
                "give a night as two floors"
            )

    def holds_at(self, now: float) -> bool:
        """Return whether the floor holds at a time, in seconds since the epoch."""
        hours = int(now // HOUR)
        day = (hours // 24 + _EPOCH_WEEKDAY) % 7
        return day in self.days and self.start_hour <= hours % 24 < self.end_hour


@dataclass(frozen=True, kw_only=True)
class ScaleConfig:
    """Rules by which a pool gets workers for its work."""

    scale_target_seconds: float = option(
        120.0,
        "Seconds in which accepted work should be done, beside the time that a model takes to load.",
        gt=0,
    )
    scale_useful_share: float = option(
        0.75, "Share of the time in which workers are to be busy; the rest is room for chance.", gt=0, le=1
    )
    scale_floors: Mapping[str, tuple[Floor, ...]] = option(
        default_factory=dict,
        help='Least workers by model, hour (UTC) and day (0 is Monday): {"flux-schnell": [{"workers": 2}, '
        '{"workers": 6, "days": [0, 1, 2, 3, 4], "start_hour": 7, "end_hour": 19}]}.',
    )
    scale_predictive: bool = option(
        False, "Have workers for what the same hour of the last four weeks needed; told in any case."
    )


@dataclass(frozen=True, kw_only=True)
class PoolDemand:
    """A pool's work in device-seconds: of waiting jobs, of the rest of running jobs, and of accepted jobs.

    `accepted` maps the start of each five minutes to the work accepted in them: the latest ones, and those of
    the same hours in earlier weeks, as far back as `known_since`.
    """

    queued_seconds: float = 0.0
    running_seconds: float = 0.0
    load_seconds: float = 0.0
    accepted: Mapping[int, float] = field(default_factory=dict)
    known_since: float = math.inf


@dataclass(frozen=True)
class DesiredWorkers:
    """Numbers of workers by reason: pending work, the current rate, the floors, and earlier weeks.

    `predicted` counts only if `is_predictive`.
    """

    for_work: int
    for_rate: int
    floor: int
    predicted: int
    is_predictive: bool

    @property
    def total(self) -> int:
        """Number of workers that the pool should have."""
        return max(self.for_work, self.for_rate, self.floor, self.predicted if self.is_predictive else 0)


def desired_workers(
    demand: PoolDemand, now: float, floors: Iterable[Floor], config: ScaleConfig
) -> DesiredWorkers:
    """Return how many workers a pool should have at the time `now`, with the reasons.

    A new worker helps only once it has loaded the model, and needs not do what the present workers finish
    until then. So the load time is added to the target.
    """
    share = config.scale_useful_share
    return DesiredWorkers(
        for_work=math.ceil(_for_work(demand, config)),
        for_rate=math.ceil(recent_rate(demand.accepted, now) / share),
        floor=max((floor.workers for floor in floors if floor.holds_at(now)), default=0),
        predicted=math.ceil(predicted_rate(demand.accepted, demand.known_since, now) / share),
        is_predictive=config.scale_predictive,
    )


def workers_worth(demand: PoolDemand, now: float, config: ScaleConfig) -> float:
    """Return how many workers a pool's work needs, not rounded: it adds up over queues of their own."""
    return max(_for_work(demand, config), recent_rate(demand.accepted, now) / config.scale_useful_share)


def _for_work(demand: PoolDemand, config: ScaleConfig) -> float:
    work = demand.queued_seconds + demand.running_seconds
    return work / (config.scale_target_seconds + demand.load_seconds)


def bucket_of(at: float) -> int:
    """Return the start of the five minutes that contain a time."""
    return int(at // BUCKET_SECONDS) * BUCKET_SECONDS


def recent_rate(accepted: Mapping[int, float], now: float) -> float:
    """Return the work recently accepted per second, which is the mean number of workers it keeps busy."""
    start = bucket_of(now - RATE_SECONDS)
    starts = range(start, bucket_of(now) + 1, BUCKET_SECONDS)
    return sum(accepted.get(at, 0.0) for at in starts) / (now - start)


def predicted_rate(accepted: Mapping[int, float], known_since: float, now: float) -> float:
    """Return the work per second in the same hour of earlier weeks, or in the next one if that is near."""
    hours = {int(at // HOUR) * HOUR for at in (now, now + _LEAD_SECONDS)}
    return max(_usual_rate(accepted, known_since, hour) for hour in hours)


def history_hours(now: float) -> Sequence[int]:
    """Return the starts of the hours whose accepted work a prediction needs."""
    hours = sorted({int(at // HOUR) * HOUR for at in (now, now + _LEAD_SECONDS)})
    return [hour - week * WEEK for week in range(1, WEEKS + 1) for hour in hours]


def _usual_rate(accepted: Mapping[int, float], known_since: float, hour: int) -> float:
    """Return an hour's usual work per second, from the earlier weeks that are known."""
    starts = [hour - week * WEEK for week in range(1, WEEKS + 1)]
    rates = sorted(_rate_in_hour(accepted, start) for start in starts if start >= known_since)
    return rates[math.ceil(_QUANTILE * len(rates)) - 1] if rates else 0.0


def _rate_in_hour(accepted: Mapping[int, float], hour: int) -> float:
    return sum(accepted.get(at, 0.0) for at in range(hour, hour + HOUR, BUCKET_SECONDS)) / HOUR
