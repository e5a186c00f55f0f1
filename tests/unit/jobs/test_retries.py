"""What follows an attempt that went wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.job import Band, JobError, JobStatus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.records import JobRecord
from diffuserve.jobs.retries import after_failure, after_loss

CONFIG = StoreConfig(
    max_transient_retries=3, max_worker_losses=2, retry_base_seconds=1.0, retry_cap_seconds=3.0
)
BROKEN = JobError("broken", "it broke", retryable=True)


def record(num_transient: int = 0, num_worker_lost: int = 0) -> JobRecord:
    return JobRecord(
        id="job",
        tenant_id="ada",
        model="tiny",
        band=Band.STANDARD,
        seq=1,
        cost_seconds=1.0,
        step_tokens=32,
        timeout=None,
        deadline=None,
        created_at=0.0,
        status=JobStatus.RUNNING,
        attempt=1,
        lease_token=1,
        num_transient=num_transient,
        num_worker_lost=num_worker_lost,
        num_events=2,
        version=2,
        worker_id="worker",
        started_at=0.0,
        finished_at=None,
        actual_seconds=None,
        result=None,
        error=None,
        is_erased=False,
    )


def test_what_would_fail_again_ends_the_job_with_its_own_error() -> None:
    error = JobError("invalid_params", "no", retryable=False)
    verdict = after_failure(record(), error, CONFIG, jitter=0.5)
    assert (verdict.error, verdict.num_transient) == (error, 0)


@pytest.mark.parametrize(("failures", "pause"), [(0, 1.0), (1, 2.0), (2, 3.0)])
def test_pauses_double_up_to_the_cap(failures: int, pause: float) -> None:
    verdict = after_failure(record(failures), BROKEN, CONFIG, jitter=1.0)
    assert (verdict.error, verdict.pause_seconds, verdict.num_transient) == (None, pause, failures + 1)


def test_the_last_retry_is_the_last() -> None:
    assert after_failure(record(num_transient=3), BROKEN, CONFIG, jitter=0.0).error == BROKEN


@given(failures=st.integers(0, 2), jitter=st.floats(0, 1))
def test_jitter_takes_away_half_of_the_pause_at_most(failures: int, jitter: float) -> None:
    whole = after_failure(record(failures), BROKEN, CONFIG, jitter=1.0).pause_seconds
    pause = after_failure(record(failures), BROKEN, CONFIG, jitter).pause_seconds
    assert whole / 2 <= pause <= whole


def test_lost_workers_are_counted_apart_from_failures() -> None:
    verdict = after_loss(record(num_transient=3, num_worker_lost=1), CONFIG)
    assert (verdict.error, verdict.num_transient, verdict.num_worker_lost) == (None, 3, 2)
    assert verdict.pause_seconds == 0.0, "the job did nothing wrong"


def test_a_job_that_outlives_too_many_workers_fails() -> None:
    verdict = after_loss(record(num_worker_lost=2), CONFIG)
    assert verdict.error is not None
    assert verdict.error.code == "worker_lost"
    assert "3 workers" in verdict.error.message
