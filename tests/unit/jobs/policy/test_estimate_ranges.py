"""The ranges of estimates are honest: four in five simulated jobs end within what was foretold."""

import random
from functools import cache
from itertools import product
from statistics import median

import pytest

from diffuserve.domain.jobs.job import QueueEstimate
from diffuserve.jobs.policy.estimate import estimate_wait
from support.simulated_queue import SimulatedJob, SimulatedQueue, draw_jobs

_LOADS = (0.5, 0.8, 0.95, 1.1)
_NUM_WORKERS = (1, 2, 6)
_NUM_SLOTS = (1, 4, 16)
_NUM_JOBS = 300


@cache
def _foretold(load: float, num_workers: int, num_slots: int) -> list[tuple[SimulatedJob, QueueEstimate]]:
    """Serve jobs, each with the estimate that it had when it was queued."""
    rng = random.Random(f"{load} {num_workers} {num_slots}")
    queue = SimulatedQueue(num_workers, num_slots)
    jobs = draw_jobs(rng, _NUM_JOBS, load * num_workers)
    estimates = []
    for job in jobs:
        queue.run_until(job.arrived_at)
        queue.put(job)
        ahead = queue.ahead_of(job.job)
        estimates.append(estimate_wait(job.job, queue.lane_sizes, queue.standings, ahead))
        queue.claim()
    queue.run_until(float("inf"))
    return list(zip(jobs, estimates, strict=True))


def _ends_inside(job: SimulatedJob, estimate: QueueEstimate) -> bool:
    low, high = _range_of(estimate)
    return low <= job.ended_at - job.arrived_at <= high


def _starts_inside(job: SimulatedJob, estimate: QueueEstimate) -> bool:
    """Return whether the job started after the least wait: the low end less its own run."""
    low, high = _range_of(estimate)
    wait = job.started_at - job.arrived_at
    return low - job.job.cost_seconds <= wait <= high


def _range_of(estimate: QueueEstimate) -> tuple[float, float]:
    assert estimate.eta_s_low is not None
    assert estimate.eta_s_high is not None
    return estimate.eta_s_low, estimate.eta_s_high


@pytest.mark.parametrize("num_slots", _NUM_SLOTS)
def test_four_in_five_jobs_start_and_end_within_their_range(num_slots: int) -> None:
    foretold = [
        pair
        for load, num_workers in product(_LOADS, _NUM_WORKERS)
        for pair in _foretold(load, num_workers, num_slots)
    ]
    assert len(foretold) == len(_LOADS) * len(_NUM_WORKERS) * _NUM_JOBS
    for is_inside in (_starts_inside, _ends_inside):
        assert sum(is_inside(*pair) for pair in foretold) >= 0.8 * len(foretold)


@pytest.mark.parametrize("num_slots", _NUM_SLOTS)
def test_a_range_is_narrow_enough_to_tell_something(num_slots: int) -> None:
    """A range from nothing to for ever would always be right."""
    ratios = [
        high / low for _, estimate in _foretold(0.95, 2, num_slots) for low, high in [_range_of(estimate)]
    ]
    assert median(ratios) < 4 + num_slots


def test_of_deadlines_that_are_accepted_few_expire() -> None:
    """On a steady server: jobs have from 2 to 160 s more than they take, and a queued one expires."""
    rng = random.Random("deadlines")
    accepted = [
        job.started_at - job.arrived_at > seconds
        for load, num_workers, num_slots in product(_LOADS[:3], _NUM_WORKERS, _NUM_SLOTS)
        for job, estimate in _foretold(load, num_workers, num_slots)
        if (seconds := rng.choice((2, 5, 10, 20, 40, 80, 160)))
        and (estimate.likely_seconds or 0.0) <= seconds + job.job.cost_seconds
    ]
    assert len(accepted) > 5_000
    assert sum(accepted) <= len(accepted) / 20
