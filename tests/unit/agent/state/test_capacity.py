"""The capacity that a worker may claim."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.agent.state.capacity import NO_CAPACITY, Capacity, EngineJob, free_capacity
from diffuserve.domain.jobs.claim import EnginePlace
from diffuserve.domain.jobs.job import Band

JOBS = st.builds(EngineJob, st.sampled_from(Band), st.integers(0, 10_000))


def standard(tokens: list[int]) -> list[EngineJob]:
    return [EngineJob(Band.STANDARD, each) for each in tokens]


@pytest.mark.parametrize(
    ("tokens", "num_finishing", "expected"),
    [
        ([], 0, Capacity(4, 200)),
        ([60, 60], 0, Capacity(2, 80)),
        ([40] * 4, 0, NO_CAPACITY),
        ([], 15, Capacity(1, 200)),
        ([], 16, NO_CAPACITY),
        ([150, 60], 0, Capacity(2, 40)),
        ([900], 0, Capacity(3, 100)),
    ],
)
def test_capacity_is_a_step_beyond_the_running_step(
    tokens: list[int], num_finishing: int, expected: Capacity
) -> None:
    assert free_capacity(4, 100, standard(tokens), num_finishing) == expected


def place(step_tokens: int = 0, band: Band = Band.STANDARD) -> EnginePlace:
    return EnginePlace(band=band, step_tokens=step_tokens)


@pytest.mark.parametrize(
    ("in_engine", "num_tokens", "ahead_of"),
    [
        (standard([100, 100]), 200, place()),
        (standard([900, 700]), 100, EnginePlace(band=Band.STANDARD, step_tokens=900)),
        (standard([900, 900, 60]), 140, EnginePlace(band=Band.STANDARD, step_tokens=900)),
        (standard([900, 900, 100, 100]), 200, place()),
        (
            [EngineJob(Band.BATCH, 900), *standard([100, 50])],
            50,
            EnginePlace(band=Band.BATCH, step_tokens=900),
        ),
        ([EngineJob(Band.INTERACTIVE, 80), *standard([900, 900, 150, 100])], 20, place(150)),
    ],
)
def test_a_full_engine_has_room_for_one_more_job_that_goes_before_the_last(
    in_engine: list[EngineJob], num_tokens: int, ahead_of: EnginePlace
) -> None:
    assert free_capacity(32, 100, in_engine, 0) == Capacity(1, num_tokens, ahead_of)


def test_jobs_that_nothing_goes_before_fill_an_engine() -> None:
    urgent = [EngineJob(Band.INTERACTIVE, 100)] * 2
    assert free_capacity(32, 100, urgent, 0) == NO_CAPACITY


@pytest.mark.parametrize(("num_jobs", "expected"), [(27, Capacity(1, 173)), (28, Capacity(1, 200, place()))])
def test_an_eighth_of_the_places_is_kept_for_jobs_that_go_before_others(
    num_jobs: int, expected: Capacity
) -> None:
    assert free_capacity(32, 100, standard([1] * num_jobs), 0) == expected
    assert free_capacity(32, 100, standard([1] * 32), 0) == NO_CAPACITY


@given(
    max_jobs=st.integers(1, 64),
    budget=st.integers(1, 10_000),
    in_engine=st.lists(JOBS, max_size=80),
    num_finishing=st.integers(0, 300),
)
def test_capacity_has_both_jobs_and_tokens_or_neither(
    max_jobs: int, budget: int, in_engine: list[EngineJob], num_finishing: int
) -> None:
    free = free_capacity(max_jobs, budget, in_engine, num_finishing)
    assert free == NO_CAPACITY or (free.num_jobs > 0 and free.num_tokens > 0)
    assert free.num_jobs + len(in_engine) <= max(max_jobs, len(in_engine))
    ahead = [
        job
        for job in in_engine
        if free.ahead_of is None or free.ahead_of.is_after(job.band, job.place(budget).step_tokens)
    ]
    held = sum(min(job.step_tokens, budget) for job in ahead)
    assert held + free.num_tokens <= max(2 * budget, held)
