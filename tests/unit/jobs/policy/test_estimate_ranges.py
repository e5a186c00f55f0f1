"""The ranges of estimates are honest: four in five simulated jobs start and end within what was foretold."""

import math
import random
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, chain, product
from statistics import median

import pytest

from diffuserve.domain.jobs.job import Band, QueueEstimate
from diffuserve.jobs.policy.estimate import estimate_wait
from diffuserve.jobs.reads.past_estimates import PastEstimates
from support.simulated_queue import SimulatedJob, SimulatedQueue, draw_jobs, sharing_workers
from support.stepping_worker import SteppingWorker, draw_image

_LOADS = (0.5, 0.8, 0.95, 1.1)
_NUM_WORKERS = (1, 2, 6)
_NUM_SLOTS = (1, 4, 16)
_NUM_JOBS = 300

_NUM_IMAGES, _NUM_ROUNDS = 60, 3
_SHARED_SECONDS = 0.075
"""What an image takes of a worker that steps many together; alone it takes half as much again."""
_SLOWNESS = (1.0, 1.15, 1.3)
_CHANGING = ((0.8, 1.0, 1.2, 1.45), (2.0,), (4.5,))
"""How many times as long as predicted jobs take: where speed changes, and where other programs run."""
_OVERHEAD = 0.03
"""Seconds from the end of an image until its client knows."""
_LEAST_ACTUAL = 0.65
"""Of its predicted seconds: what an image takes where many share steps."""

_TOGETHER = ("all at once", "all at once, in three bands")

Foretold = Sequence[tuple[SimulatedJob, QueueEstimate]]


def _foretold(
    queue: SimulatedQueue, jobs: Sequence[SimulatedJob], past: PastEstimates | None = None
) -> Foretold:
    """Serve jobs, each with the estimate that it had when it was queued; with a past they are widened."""
    estimates = []
    for job in jobs:
        queue.run_until(job.arrived_at)
        queue.put(job)
        estimate = estimate_wait(job.job, queue.lane_sizes, queue.standings, queue.ahead_of(job.job))
        estimates.append(estimate if past is None else _widened(past, jobs, job, estimate))
        queue.claim()
    queue.run_until(math.inf)
    return list(zip(jobs, estimates, strict=True))


def _widened(
    past: PastEstimates, jobs: Sequence[SimulatedJob], job: SimulatedJob, estimate: QueueEstimate
) -> QueueEstimate:
    """Return the estimate as those of the jobs that have ended by now demand."""
    past.settle({each.job.id: each.ended_at for each in jobs if not math.isnan(each.ended_at)})
    past.note(job.job, job.arrived_at, estimate)
    return past.widen(job.job, estimate)


@cache
def _shared(load: float, num_workers: int, num_slots: int) -> Foretold:
    """Return what was foretold where workers share their time evenly among jobs that differ much."""
    jobs = draw_jobs(random.Random(f"{load} {num_workers} {num_slots}"), _NUM_JOBS, load * num_workers)
    return _foretold(SimulatedQueue(sharing_workers(num_workers, num_slots)), jobs)


@cache
def _stepped(name: str, num_workers: int, slowness: float) -> Foretold:
    """Return what was foretold where engines step the images of one tenant, the shortest first."""
    found: list[tuple[SimulatedJob, QueueEstimate]] = []
    for number in range(_NUM_ROUNDS):
        chance = random.Random(f"{name} {number}")
        arrivals = _arrivals(chance, num_workers)[name]
        jobs = [draw_image(chance, place, band, at) for place, (at, band) in enumerate(arrivals)]
        queue = SimulatedQueue([SteppingWorker(slowness) for _ in range(num_workers)], 16 * num_workers)
        found += _foretold(queue, jobs)
    return found


@cache
def _learned(slowness: Sequence[float], num_workers: int) -> Mapping[str, Foretold]:
    """Return what was foretold by a control plane that learns, by load; it is new to the first one's jobs."""
    past, found = PastEstimates(), dict[str, list[tuple[SimulatedJob, QueueEstimate]]]()
    for number, name in product(range(_NUM_ROUNDS + 1), ("at random", "a burst", "bursts in three bands")):
        chance = random.Random(f"{name} {number} learned")
        workers = [SteppingWorker(chance.choice(slowness)) for _ in range(num_workers)]
        arrivals = _arrivals(chance, num_workers)[name]
        jobs = [draw_image(chance, place, band, at) for place, (at, band) in enumerate(arrivals)]
        foretold = _foretold(SimulatedQueue(workers, 16 * num_workers), jobs, past)
        past.settle({job.job.id: job.ended_at for job in jobs})
        found.setdefault(name, []).extend(foretold if number else ())
    return found


def _arrivals(chance: random.Random, num_workers: int) -> Mapping[str, Sequence[tuple[float, Band]]]:
    """Return loads of images by name: when each comes, and in which band."""
    mean_gap = _SHARED_SECONDS / num_workers
    gaps = [chance.expovariate(0.75 / mean_gap) for _ in range(_NUM_IMAGES)]
    mixed: list[tuple[float, Band]] = []
    at = 0.0
    while len(mixed) < _NUM_IMAGES:
        size = chance.randint(5, 10) if chance.random() < 0.1 else 1
        at += size * chance.expovariate(0.75 / mean_gap)
        mixed += [(at, chance.choice(list(Band)))] * size
    standard = [Band.STANDARD] * _NUM_IMAGES
    return {
        "a burst": [(place * mean_gap / 4, Band.STANDARD) for place in range(_NUM_IMAGES)],
        "a slow burst": [(place * mean_gap * 0.8, Band.STANDARD) for place in range(_NUM_IMAGES)],
        _TOGETHER[0]: [(0.0, Band.STANDARD)] * _NUM_IMAGES,
        _TOGETHER[1]: [(0.0, chance.choice(list(Band))) for _ in range(_NUM_IMAGES)],
        "at random": list(zip(accumulate(gaps), standard, strict=True)),
        "bursts in three bands": mixed[:_NUM_IMAGES],
    }


_STEPPED = [
    (name, num_workers, slowness)
    for name, num_workers, slowness in product(_arrivals(random.Random(0), 1), (1, 3), _SLOWNESS)
    # Three workers start all at once, and the first fifth cannot know who is to share their steps.
    if name not in _TOGETHER or num_workers == 1
]
_SHARED = list(product(_LOADS, _NUM_WORKERS, _NUM_SLOTS))


def _range_of(estimate: QueueEstimate) -> tuple[float, float]:
    assert estimate.eta_s_low is not None
    assert estimate.eta_s_high is not None
    return estimate.eta_s_low, estimate.eta_s_high


def _check(foretold: Foretold, overhead: float = 0.0, least_actual: float = 1.0) -> None:
    """Four in five start and end within their range, and it is narrow enough to tell something.

    A start is inside if it is no earlier than the low end less what the job takes.
    """
    starts = ends = 0
    waits, widths = [], []
    for job, estimate in foretold:
        low, high = _range_of(estimate)
        waits.append(job.ended_at - job.arrived_at + overhead)
        widths.append(high - low)
        ends += low <= waits[-1] <= high
        earliest = low - least_actual * job.job.cost_seconds
        starts += earliest <= job.started_at - job.arrived_at <= high
    assert starts >= 0.8 * len(foretold)
    assert ends >= 0.8 * len(foretold)
    assert median(widths) <= 3 * median(waits)


@pytest.mark.parametrize("num_slots", _NUM_SLOTS)
@pytest.mark.parametrize("load", _LOADS)
def test_ranges_hold_where_jobs_share_their_workers_evenly(load: float, num_slots: int) -> None:
    _check([pair for num_workers in _NUM_WORKERS for pair in _shared(load, num_workers, num_slots)])


@pytest.mark.parametrize(("name", "num_workers", "slowness"), _STEPPED)
def test_ranges_hold_where_engines_step_the_shortest_first(
    name: str, num_workers: int, slowness: float
) -> None:
    """From the first image of a burst on, and on machines that take up to a third longer than predicted."""
    _check(_stepped(name, num_workers, slowness), _OVERHEAD, _LEAST_ACTUAL)


@pytest.mark.parametrize("slowness", _CHANGING)
def test_ranges_learn_how_far_off_predictions_are(slowness: Sequence[float]) -> None:
    for foretold in _learned(slowness, 1).values():
        _check(foretold, _OVERHEAD, _LEAST_ACTUAL)


@pytest.mark.parametrize("slowness", _CHANGING)
def test_several_workers_that_differ_are_learned_together(slowness: Sequence[float]) -> None:
    """Over all loads: of a burst that several workers start, the first jobs know too little."""
    _check([*chain(*_learned(slowness, 3).values())], _OVERHEAD, _LEAST_ACTUAL)


def _check_deadlines(asked: Sequence[tuple[SimulatedJob, float, QueueEstimate]]) -> None:
    """Assert that few of the accepted jobs expire, and that few are refused whose deadline would be met."""
    accepted = [(job, seconds) for job, seconds, estimate in asked if sum(_range_of(estimate)) / 2 <= seconds]
    num_expired = sum(
        job.started_at - job.arrived_at > seconds - job.job.cost_seconds for job, seconds in accepted
    )
    num_met = sum(job.ended_at - job.arrived_at <= seconds for job, seconds, _ in asked)
    assert len(accepted) >= 0.9 * num_met, "what would be in time is not refused"
    assert num_expired <= len(accepted) / 20


def test_of_deadlines_that_are_accepted_few_expire() -> None:
    """On a steady server: jobs have from 2 to 160 s more than they take, and a queued one expires."""
    chance = random.Random("deadlines")
    foretold = chain(*(_shared(*setting) for setting in _SHARED if setting[0] < 1))
    _check_deadlines(
        [
            (job, chance.choice((2, 5, 10, 20, 40, 80, 160)) + job.job.cost_seconds, estimate)
            for job, estimate in foretold
        ]
    )


def test_of_deadlines_on_a_slow_machine_few_expire_once_its_speed_is_learned() -> None:
    chance = random.Random("slow")
    foretold = [*chain(*_learned((4.5,), 1).values())]
    wait = median(job.ended_at - job.arrived_at for job, _ in foretold)
    _check_deadlines(
        [
            (job, wait * chance.choice((0.1, 0.25, 0.5, 1, 1.5, 2, 3)) + job.job.cost_seconds, estimate)
            for job, estimate in foretold
        ]
    )


@pytest.mark.parametrize("seconds", [1.0, 2.0, 4.0])
def test_of_images_that_come_together_as_many_are_accepted_as_meet_their_deadline(seconds: float) -> None:
    chance, queue, accepted = random.Random("together"), SimulatedQueue([SteppingWorker()], 16), []
    for number in range(_NUM_IMAGES):
        job = draw_image(chance, number, Band.STANDARD, 0.0)
        ahead = queue.ahead_of(job.job)
        likely = estimate_wait(job.job, queue.lane_sizes, queue.standings, ahead).likely_seconds
        if likely is not None and likely <= seconds:
            accepted.append(job)
            queue.put(job)
            queue.claim()
    queue.run_until(math.inf)
    assert sum(job.ended_at > seconds for job in accepted) <= len(accepted) / 20
    assert len(accepted) >= 0.6 * seconds / _SHARED_SECONDS
