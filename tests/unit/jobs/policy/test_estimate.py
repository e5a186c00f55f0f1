"""Estimates of a queued job's wait."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.jobs.job import Band, Job, JobStatus, QueueEstimate
from diffuserve.domain.workers.readiness import ModelStatus
from diffuserve.jobs.policy.estimate import LaneSize, RunningWork, TenantStanding, WorkAhead, estimate_wait

JOB = Job(
    id="job",
    tenant_id="ada",
    kind="image.generate",
    model="tiny",
    status=JobStatus.QUEUED,
    band=Band.STANDARD,
    input={},
    metadata={},
    cost_seconds=2.0,
    step_tokens=32,
    attempt=0,
    lease_token=0,
    version=1,
    created_at=0.0,
)
NO_WORK = WorkAhead(num_jobs=0, work_seconds=0.0, running=RunningWork(1, 0.0), num_workers=1)
EQUAL = {"ada": TenantStanding(), "bob": TenantStanding()}


def rival(
    num_ready: int = 10, work: float = 20.0, band: Band = Band.STANDARD, model: str = "tiny"
) -> LaneSize:
    return LaneSize(band, "bob", model, num_ready, work)


def times(estimate: QueueEstimate) -> tuple[float, float]:
    """Return both ends of an estimate that has them."""
    assert estimate.eta_s_low is not None
    assert estimate.eta_s_high is not None
    return estimate.eta_s_low, estimate.eta_s_high


def low_behind(seconds: float) -> float:
    """Return the low end of an estimate behind so much work of a better band, all of which is ahead."""
    return times(estimate_wait(JOB, [rival(work=seconds, band=Band.INTERACTIVE)], EQUAL, NO_WORK))[0]


def test_the_range_of_a_job_alone_has_its_own_time_inside() -> None:
    estimate = estimate_wait(JOB, [], EQUAL, NO_WORK)
    low, high = times(estimate)
    assert estimate.ahead == 0
    assert low < JOB.cost_seconds < high


def test_another_tenants_queue_counts_as_far_as_it_is_behind() -> None:
    behind = EQUAL | {"ada": TenantStanding(vtime=7.0), "bob": TenantStanding(vtime=3.0)}
    heavy = behind | {"bob": TenantStanding(weight=3.0, vtime=3.0)}
    equal, weighted = (estimate_wait(JOB, [rival()], standings, NO_WORK) for standings in (behind, heavy))
    assert (equal.ahead, weighted.ahead) == (2, 6)
    assert (times(equal)[0], times(weighted)[0]) == pytest.approx((low_behind(4.0), low_behind(12.0)))


def test_a_tenant_that_was_served_more_is_not_ahead() -> None:
    standings = EQUAL | {"bob": TenantStanding(vtime=3.0)}
    estimate = estimate_wait(JOB, [rival()], standings, NO_WORK)
    assert (estimate.ahead, times(estimate)[0]) == (0, low_behind(0.0))


def test_what_precedes_a_job_in_its_lane_lets_others_go_first() -> None:
    estimate = estimate_wait(JOB, [rival()], EQUAL, replace(NO_WORK, num_jobs=2, work_seconds=6.0))
    assert estimate.ahead == 2 + 3
    assert times(estimate)[0] == pytest.approx(low_behind(6.0 + 6.0))


def test_all_jobs_of_a_better_band_are_ahead_and_none_of_a_worse_band() -> None:
    first = estimate_wait(JOB, [rival(band=Band.INTERACTIVE)], EQUAL, NO_WORK)
    last = estimate_wait(JOB, [rival(band=Band.BATCH)], EQUAL, NO_WORK)
    assert (first.ahead, last.ahead) == (10, 0)
    assert (first.ahead_high, last.ahead_high) == (10, 10), "a worse band passes after a long wait"
    assert times(last)[0] == low_behind(0.0)


def test_what_a_rival_is_served_in_a_better_band_counts_against_it() -> None:
    behind = EQUAL | {"ada": TenantStanding(vtime=7.0)}
    lanes = [rival(num_ready=1, work=5.0, band=Band.INTERACTIVE), rival()]
    assert times(estimate_wait(JOB, lanes, behind, NO_WORK))[0] == pytest.approx(low_behind(5.0 + 2.0))


def test_the_tenants_own_better_band_is_ahead_and_its_worse_one_is_not() -> None:
    better, worse = (replace(rival(band=band), tenant_id="ada") for band in (Band.INTERACTIVE, Band.BATCH))
    estimate = estimate_wait(JOB, [better, worse], EQUAL, NO_WORK)
    assert (estimate.ahead, estimate.ahead_high) == (10, 10)
    assert times(estimate)[0] == low_behind(20.0)


def test_running_work_raises_only_the_high_end() -> None:
    idle, busy = (
        estimate_wait(JOB, [], EQUAL, replace(NO_WORK, running=RunningWork(1, seconds)))
        for seconds in (0.0, 4.0)
    )
    assert times(busy)[0] == times(idle)[0]
    assert times(busy)[1] > times(idle)[1] + 2.0


def test_a_heavier_tenant_waits_less_for_others() -> None:
    standings = EQUAL | {"ada": TenantStanding(weight=4.0)}
    estimate = estimate_wait(JOB, [rival()], standings, replace(NO_WORK, work_seconds=6.0))
    assert estimate.ahead == 1
    assert times(estimate)[0] == pytest.approx(low_behind(6.0 + 6.0 / 4))


def test_a_queue_shorter_than_its_share_counts_once() -> None:
    standings = EQUAL | {"ada": TenantStanding(vtime=100.0)}
    estimate = estimate_wait(JOB, [rival(num_ready=3, work=1.0)], standings, NO_WORK)
    assert estimate.ahead == 3
    assert times(estimate)[0] == pytest.approx(low_behind(1.0))


def test_jobs_without_a_predicted_cost_are_all_ahead() -> None:
    estimate = estimate_wait(JOB, [rival(num_ready=7, work=0.0)], EQUAL, NO_WORK)
    assert (estimate.ahead, times(estimate)[0]) == (7, low_behind(0.0))


def test_without_a_worker_there_is_a_reason_and_no_time() -> None:
    ahead = WorkAhead(num_jobs=4, work_seconds=8.0, running=RunningWork(1, 4.0), num_workers=0)
    estimate = estimate_wait(JOB, [rival()], EQUAL, ahead)
    assert (estimate.ahead, estimate.eta_s_low, estimate.eta_s_high) == (4 + 4, None, None)
    assert estimate.reason == "no worker serves tiny at present"
    assert estimate_wait(JOB, [rival()], EQUAL, NO_WORK).reason is None
    exact = estimate_wait(replace(JOB, exact=True), [rival()], EQUAL, ahead)
    assert "not to be quantized: the job is exact" in str(exact.reason)


def test_jobs_of_other_models_do_not_count() -> None:
    assert estimate_wait(JOB, [rival(model="other")], EQUAL, NO_WORK) == estimate_wait(
        JOB, [], EQUAL, NO_WORK
    )


def test_several_workers_share_the_work_ahead() -> None:
    ahead = WorkAhead(num_jobs=4, work_seconds=8.0, running=RunningWork(1, 4.0), num_workers=1)
    alone, shared = (
        estimate_wait(JOB, [], EQUAL, ahead),
        estimate_wait(JOB, [], EQUAL, replace(ahead, num_workers=4)),
    )
    assert times(alone)[0] - low_behind(0.0) == pytest.approx(4 * (times(shared)[0] - low_behind(0.0)))
    assert times(shared)[1] < times(alone)[1]


@given(
    work=st.floats(0, 1e4),
    running=st.floats(0, 1e4),
    rivals=st.lists(
        st.builds(rival, st.integers(1, 100), st.floats(0, 1e4), st.sampled_from(Band)), max_size=4
    ),
    num_workers=st.integers(1, 8),
)
def test_the_low_end_is_never_above_the_high_end(
    work: float, running: float, rivals: list[LaneSize], num_workers: int
) -> None:
    ahead = WorkAhead(num_jobs=3, work_seconds=work, running=RunningWork(1, running), num_workers=num_workers)
    estimate = estimate_wait(JOB, rivals, EQUAL, ahead)
    low, high = times(estimate)
    assert 0 < low <= high
    assert estimate.ahead >= ahead.num_jobs


@given(
    seconds=st.tuples(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1e3)),
    more=st.tuples(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1e3)),
    band=st.sampled_from(Band),
    weight=st.sampled_from([0.25, 1.0, 4.0]),
    num_workers=st.integers(1, 8),
)
def test_more_work_ahead_never_makes_the_wait_shorter(
    seconds: tuple[float, float, float],
    more: tuple[float, float, float],
    band: Band,
    weight: float,
    num_workers: int,
) -> None:
    def wait(own: float, running: float, others: float) -> QueueEstimate:
        standings = EQUAL | {"bob": TenantStanding(weight)}
        ahead = WorkAhead(
            num_jobs=3, work_seconds=own, running=RunningWork(1, running), num_workers=num_workers
        )
        return estimate_wait(JOB, [rival(work=others, band=band)], standings, ahead)

    less = wait(*seconds)
    rounding = 0.002
    for index in range(3):
        added = [value + more[index] * (place == index) for place, value in enumerate(seconds)]
        worse = wait(*added)
        assert times(worse)[0] >= times(less)[0] - rounding
        assert times(worse)[1] >= times(less)[1] - rounding


def test_while_a_model_is_loaded_the_estimate_says_so() -> None:
    ahead = replace(NO_WORK, num_workers=0, status=ModelStatus.LOADING)
    estimate = estimate_wait(JOB, [], EQUAL, ahead)
    assert (estimate.eta_s_high, estimate.reason) == (None, "tiny is being loaded")


def test_workers_that_load_the_model_help_at_best() -> None:
    alone = replace(NO_WORK, num_jobs=10, work_seconds=10.0)
    one, more = (
        times(estimate_wait(JOB, [], EQUAL, ahead)) for ahead in (alone, replace(alone, num_coming=2))
    )
    alone_low, shared_low = low_behind(10.0), low_behind(10.0 / 3)
    assert (one[0], more[0]) == pytest.approx((alone_low, shared_low), abs=0.001)
    assert more[1] == one[1]


def test_workers_that_a_tenant_may_not_use_do_not_help_it() -> None:
    """A tenant uses two of eight workers if only two of its jobs may run at a time."""
    ahead = replace(NO_WORK, num_jobs=8, work_seconds=8.0)
    limited = EQUAL | {"ada": TenantStanding(max_running=2)}
    few = estimate_wait(JOB, [], EQUAL, replace(ahead, num_workers=2))
    assert estimate_wait(JOB, [], limited, replace(ahead, num_workers=8)) == few
    others = [rival(work=8.0, band=Band.INTERACTIVE)]
    idle = replace(NO_WORK, num_workers=8)
    assert estimate_wait(JOB, others, limited, idle) == estimate_wait(JOB, others, EQUAL, idle)


def test_a_short_job_need_not_wait_for_long_ones_that_share_a_worker() -> None:
    def high(num_jobs: int) -> float:
        running = RunningWork(num_jobs, 1_000.0)
        return times(estimate_wait(JOB, [], EQUAL, replace(NO_WORK, running=running)))[1]

    assert high(1) > 1_000, "perhaps its worker runs one at a time"
    assert high(4) < high(8) < 100


def test_a_preempted_job_needs_only_what_its_checkpoint_has_not() -> None:
    preempted = replace(JOB, cost_seconds=20.0, kept_seconds=18.0)
    assert estimate_wait(preempted, [], EQUAL, NO_WORK) == estimate_wait(JOB, [], EQUAL, NO_WORK)
