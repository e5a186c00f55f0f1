"""The choice of the job that makes room: the one that loses the least, within its rights."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.preemption import PreemptibleJob, cheapest, is_overdue, may_make_room

CONFIG = StoreConfig()
JOB = PreemptibleJob(
    job_id="a", worker_id="w", cost_seconds=100.0, latent_bytes=1_000_000, step=50, total=100
)


def chosen(*jobs: PreemptibleJob, **num_urgent: int) -> str:
    job = cheapest(jobs, num_urgent)
    assert job is not None
    return job.job_id


def test_there_may_be_none() -> None:
    assert cheapest([], {}) is None


@pytest.mark.parametrize(
    "cheaper",
    [
        replace(JOB, job_id="b", step=0, total=0),
        replace(JOB, job_id="b", latent_bytes=0),
        replace(JOB, job_id="b", cost_seconds=50.0),
        replace(JOB, job_id="b", step=49),
    ],
    ids=["has done nothing", "small checkpoint", "shorter steps", "has done less"],
)
def test_the_job_that_loses_the_least_makes_room(cheaper: PreemptibleJob) -> None:
    assert chosen(JOB, cheaper) == chosen(cheaper, JOB) == "b"


def test_of_equal_ones_it_is_one_that_was_preempted_less_often() -> None:
    assert chosen(replace(JOB, num_preempted=1), replace(JOB, job_id="b", step=60)) == "b"


def test_urgent_jobs_spread_over_workers() -> None:
    cheap, dear = replace(JOB, step=0), replace(JOB, job_id="b", worker_id="v")
    assert chosen(cheap, dear, w=1) == "b"
    assert chosen(cheap, dear, w=1, v=1) == "a"


def test_a_job_makes_room_a_few_times() -> None:
    times = [may_make_room(replace(JOB, num_preempted=n), 0.0, CONFIG) for n in range(5)]
    assert times == [True, True, True, False, False]


def test_a_job_that_soon_ends_goes_on() -> None:
    assert may_make_room(replace(JOB, step=98), 0.0, CONFIG)
    assert not may_make_room(replace(JOB, step=99), 0.0, CONFIG)


def test_a_job_close_to_its_deadline_goes_on() -> None:
    """A job needs twice its 50 seconds and what it loses: a step of one second, and the transfer."""
    assert may_make_room(replace(JOB, finish_by=103.0), 0.0, CONFIG)
    assert not may_make_room(replace(JOB, finish_by=102.0), 0.0, CONFIG)


def test_a_job_is_overdue_after_the_setting_and_never_at_zero() -> None:
    assert [is_overdue(10.0, now, CONFIG) for now in (10.4, 10.5)] == [False, True]
    assert not is_overdue(0.0, 1e9, replace(CONFIG, preempt_after_seconds=0.0))


@given(
    step=st.integers(0, 100),
    cost=st.floats(0.0, 1e4),
    latent_bytes=st.integers(0, 10**9),
)
def test_what_is_lost_is_a_step_and_the_way_of_the_checkpoint(
    step: int, cost: float, latent_bytes: int
) -> None:
    job = replace(JOB, step=step, cost_seconds=cost, latent_bytes=latent_bytes)
    assert job.lost_seconds == 0.0 if step == 0 else job.lost_seconds >= cost / 100
    assert 0.0 <= job.remaining_seconds <= cost
