"""What looks at a real fleet and its ended jobs tell: pure functions of what the driver saw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from benchmarks.fleet.figures import Course, Struck, area
from benchmarks.fleet.trace import MachineLoss
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.resources.job import JobResource


@dataclass(frozen=True)
class Look:
    """A look at the fleet, at a second of the trace.

    `live` has the ids of the workers that are ready at the control plane by their names, `occupied` the names
    of those that have a job, and `placed` the nodes of those that the cluster manager counts.
    """

    second: float
    live: Mapping[str, str]
    occupied: frozenset[str]
    placed: Mapping[str, str]


@dataclass(frozen=True)
class Hit:
    """A loss as it was played: the worker that it hit, and its node."""

    loss: MachineLoss
    second: float
    worker: str
    node: str


@dataclass(frozen=True)
class PlayedFleet:
    """A fleet's course, the device-seconds of a step, and the seconds from a place to a ready worker."""

    course: Course
    step_seconds: float
    load_seconds: float


def played_of(
    jobs: Sequence[JobResource],
    begun: float,
    first: Sequence[Look],
    looks: Sequence[Look],
    hits: Sequence[Hit],
) -> PlayedFleet:
    """Return what became of jobs that have ended, on a fleet that was looked at `first` until it was ready.

    The trace began at the time `begun`, by the control plane's clock.
    """
    drawn = [job for job in jobs if job.status is JobStatus.SUCCEEDED]
    until = max(_seconds(job.finished_at) for job in jobs) - begun
    device_seconds = [job.actual_seconds or 0.0 for job in drawn]
    times = [_seconds(job.finished_at) - _seconds(job.created_at) for job in drawn]
    course = Course(
        seconds=until,
        waits=tuple(max(each - own, 0.0) for each, own in zip(times, device_seconds, strict=True)),
        num_lost=len(jobs) - len(drawn),
        num_redrawn=sum(job.attempt > 1 for job in drawn),
        losses=tuple(_struck(hit, looks) for hit in hits),
        ready=_ready(looks),
        workers=_changes([(max(look.second, 0.0), len(look.live)) for look in looks]),
        worker_seconds=area([(look.second, len(look.placed)) for look in looks], until),
    )
    steps = sum(job.input["num_inference_steps"] for job in drawn)
    return PlayedFleet(course, sum(device_seconds) / steps, _load_seconds(first))


def _seconds(time_of_job: str | None) -> float:
    assert time_of_job is not None
    return datetime.fromisoformat(time_of_job).timestamp()


def _struck(hit: Hit, looks: Sequence[Look]) -> Struck:
    before = [look for look in looks if look.second <= hit.second]
    gone = (look.second for look in looks if look.second > hit.second and _is_gone(hit, look))
    return Struck(hit.second, hit.loss.kind, len(before[-1].live), next(gone, None))


def _is_gone(hit: Hit, look: Look) -> bool:
    return look.placed.get(hit.worker) != hit.node


def _ready(looks: Sequence[Look]) -> tuple[float, ...]:
    """Return when workers became ready that were not there at first."""
    known = set(looks[0].live.values())
    found = []
    for look in looks:
        new = set(look.live.values()) - known
        found += [look.second] * len(new)
        known |= new
    return tuple(found)


def _changes(counts: Sequence[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """Return the first count, and those that differ from the one before."""
    before = [None, *(count for _, count in counts)]
    return tuple(each for each, earlier in zip(counts, before, strict=False) if each[1] != earlier)


def _load_seconds(looks: Sequence[Look]) -> float:
    """Return the seconds from the first worker's place to its readiness."""
    placed = next(look.second for look in looks if look.placed)
    return next(look.second for look in looks if look.live) - placed
