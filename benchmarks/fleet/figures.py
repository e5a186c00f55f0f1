"""What a fleet made of the trace: pure functions of what was seen, the same for real and simulated fleets."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.fleet.trace import LossKind


@dataclass(frozen=True)
class Struck:
    """A machine that went, at a second of the trace, with as many ready workers as there were just before.

    From `known` on the cluster manager no longer counted its worker; `None` if it did so to the end.
    """

    second: float
    kind: LossKind
    num_ready: int
    known: float | None


@dataclass(frozen=True, kw_only=True)
class Course:
    """What was seen of a fleet, in seconds of the trace, which ended with its last job after `seconds`.

    A job's wait is what its client waited beside the device-seconds of the image itself: what an attempt
    lost and the time until its lease was over are part of it. `ready` are the times at which further workers
    became ready, `workers` how many were ready from which second on, and `worker_seconds` what the cluster
    manager counted, lost machines included until it knew of them.
    """

    seconds: float
    waits: tuple[float, ...]
    num_lost: int
    num_redrawn: int
    losses: tuple[Struck, ...]
    ready: tuple[float, ...]
    workers: tuple[tuple[float, int], ...]
    worker_seconds: float


@dataclass(frozen=True, kw_only=True)
class FleetFigures:
    """Figures of a fleet. `replaced` has the seconds from each loss of a kind to the worker that replaces it.

    A loss that was not made good before the last job's end has `None`.
    """

    num_jobs: int
    num_lost: int
    num_redrawn: int
    wait_p50: float
    wait_p95: float
    worker_seconds: float
    seconds: float
    replaced: dict[LossKind, list[float | None]]


def figures_of(course: Course) -> FleetFigures:
    cuts = statistics.quantiles(course.waits, n=100, method="inclusive")
    replaced: dict[LossKind, list[float | None]] = {kind: [] for kind in LossKind}
    for loss, seconds in zip(course.losses, replaced_after(course.losses, course.ready), strict=True):
        replaced[loss.kind].append(seconds)
    return FleetFigures(
        num_jobs=len(course.waits),
        num_lost=course.num_lost,
        num_redrawn=course.num_redrawn,
        wait_p50=cuts[49],
        wait_p95=cuts[94],
        worker_seconds=course.worker_seconds,
        seconds=course.seconds,
        replaced=replaced,
    )


def replaced_after(losses: Sequence[Struck], ready: Sequence[float]) -> list[float | None]:
    """Return the seconds from each loss to the worker that replaces it: the first ready once it was known.

    A worker replaces one loss, of those that are open the one that was known first.
    """
    found: dict[int, float] = {}
    known = sorted((loss.known, place) for place, loss in enumerate(losses) if loss.known is not None)
    for at in sorted(ready):
        place = next((place for since, place in known if since <= at and place not in found), None)
        if place is not None:
            found[place] = at - losses[place].second
    return [found.get(place) for place in range(len(losses))]


def area(samples: Sequence[tuple[float, int]], until: float) -> float:
    """Return the integral of a count from second 0 `until` a second, each sample holding up to the next."""
    ends = [at for at, _ in samples[1:]] + [until]
    pairs = zip(samples, ends, strict=True)
    return sum(count * max(min(end, until) - max(begin, 0.0), 0.0) for (begin, count), end in pairs)
