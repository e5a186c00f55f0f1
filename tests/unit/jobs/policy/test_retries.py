"""Decisions after an attempt that failed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.jobs.job import Band, JobError, JobStatus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.retries import after_failure, after_loss
from diffuserve.jobs.records import JobRecord

CONFIG = StoreConfig(
    max_transient_retries=3, max_worker_losses=2, retry_base_seconds=1.0, retry_cap_seconds=3.0
)
BROKEN = JobError("broken", "it broke", retryable=True)


def record(num_transient: int = 0, num_worker_lost: int = 0) -> JobRecord:
    return JobRecord(
        id="job",
        tenant_id="ada",
        kind="image.generate",
        model="tiny",
        input="{}",
        metadata="{}",
        output_format="png",
        num_previews=0,
        band=Band.STANDARD,
        seq=1,
        cost_seconds=1.0,
        step_tokens=32,
        timeout=None,
        deadline=None,
        webhook=None,
        batch_id=None,
        custom_id=None,
        prompt=None,
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
    )


def test_an_error_that_is_not_retryable_ends_the_job() -> None:
    error = JobError("invalid_params", "no", retryable=False)
    decision = after_failure(record(), error, CONFIG, jitter=0.5)
    assert (decision.error, decision.num_transient, decision.pause_seconds) == (error, 0, 0.0)
    assert after_failure(record(num_transient=2), error, CONFIG, jitter=0.5).num_transient == 2


@pytest.mark.parametrize(("failures", "pause"), [(0, 1.0), (1, 2.0), (2, 3.0)])
def test_pauses_double_up_to_the_cap(failures: int, pause: float) -> None:
    decision = after_failure(record(failures), BROKEN, CONFIG, jitter=1.0)
    assert (decision.error, decision.pause_seconds, decision.num_transient) == (None, pause, failures + 1)


def test_no_retry_follows_the_last_one() -> None:
    decision = after_failure(record(num_transient=3), BROKEN, CONFIG, jitter=0.0)
    assert (decision.error, decision.num_transient, decision.pause_seconds) == (BROKEN, 4, 0.0)


def test_failures_do_not_change_the_count_of_lost_workers() -> None:
    for failures in (0, 3):
        assert after_failure(record(failures, 2), BROKEN, CONFIG, jitter=0.0).num_worker_lost == 2
    final = JobError("invalid_params", "no")
    assert after_failure(record(0, 2), final, CONFIG, jitter=0.0).num_worker_lost == 2


@given(failures=st.integers(0, 2), jitter=st.floats(0, 1))
def test_jitter_shortens_a_pause_by_at_most_half(failures: int, jitter: float) -> None:
    whole = after_failure(record(failures), BROKEN, CONFIG, jitter=1.0).pause_seconds
    pause = after_failure(record(failures), BROKEN, CONFIG, jitter).pause_seconds
    assert whole / 2 <= pause <= whole


@given(base=st.floats(0.01, 10), cap=st.floats(0.01, 100), jitter=st.floats(0, 1))
def test_pauses_never_shrink_nor_exceed_the_cap(base: float, cap: float, jitter: float) -> None:
    config = StoreConfig(max_transient_retries=12, retry_base_seconds=base, retry_cap_seconds=cap)
    pauses = [after_failure(record(n), BROKEN, config, jitter).pause_seconds for n in range(12)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] <= base
    assert pauses[-1] <= cap


@given(st.lists(st.booleans(), min_size=6, max_size=12), st.integers(0, 3), st.integers(0, 3))
def test_each_cause_has_its_own_attempts(losses: list[bool], retries: int, spared: int) -> None:
    config = StoreConfig(max_transient_retries=retries, max_worker_losses=spared)
    job, decision, num_run = record(), None, 0
    for is_lost in losses:
        num_run += 1
        decision = after_loss(job, config) if is_lost else after_failure(job, BROKEN, config, jitter=0.0)
        if decision.error is not None:
            break
        job = record(decision.num_transient, decision.num_worker_lost)
    lost = sum(losses[:num_run])
    is_over = lost > spared or num_run - lost > retries
    assert decision is not None
    assert (decision.num_transient, decision.num_worker_lost) == (num_run - lost, lost)
    assert (decision.error is not None) is is_over
    assert is_over or num_run == len(losses)


def test_lost_workers_are_counted_separately_from_failures() -> None:
    decision = after_loss(record(num_transient=3, num_worker_lost=1), CONFIG)
    assert (decision.error, decision.num_transient, decision.num_worker_lost) == (None, 3, 2)
    assert decision.pause_seconds == 0.0, "the job did nothing wrong"


def test_a_job_that_outlives_too_many_workers_fails() -> None:
    decision = after_loss(record(num_worker_lost=2), CONFIG)
    assert decision.error is not None
    assert decision.error.code == "worker_lost"
    assert "3 workers" in decision.error.message
    assert (decision.error.retryable, decision.num_worker_lost) == (False, 3)
