"""How long a queued job is told that it will wait."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.job import Band, Job, JobStatus, QueueEstimate
from diffuserve.jobs.estimate import LaneSize, WorkAhead, estimate_wait

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
NOTHING = WorkAhead(num_jobs=0, work_seconds=0.0, running_seconds=0.0, num_workers=1)


def rival(
    num_ready: int = 10, work: float = 20.0, band: Band = Band.STANDARD, model: str = "tiny"
) -> LaneSize:
    return LaneSize(band, "bob", model, num_ready, work)


def test_alone_a_job_takes_its_own_time() -> None:
    estimate = estimate_wait(JOB, [], {}, NOTHING)
    assert (estimate.ahead, estimate.eta_s_low) == (0, 2.0)


def test_a_rivals_queue_counts_as_far_as_its_share_goes() -> None:
    equal = estimate_wait(JOB, [rival()], {"ada": 1, "bob": 1}, NOTHING)
    heavy = estimate_wait(JOB, [rival()], {"ada": 1, "bob": 3}, NOTHING)
    assert (equal.ahead, equal.eta_s_low) == (1, 2.0 + 2.0)
    assert (heavy.ahead, heavy.eta_s_low) == (3, 2.0 + 6.0)


def test_a_better_band_goes_first_as_a_whole_and_a_worse_one_not_at_all() -> None:
    first = estimate_wait(JOB, [rival(band=Band.INTERACTIVE)], {}, NOTHING)
    last = estimate_wait(JOB, [rival(band=Band.BATCH)], {}, NOTHING)
    assert (first.ahead, last.ahead) == (10, 0)


def test_a_worse_band_may_still_come_first_by_age() -> None:
    alone, batch = (estimate_wait(JOB, lanes, {}, NOTHING) for lanes in ([], [rival(band=Band.BATCH)]))
    assert batch.eta_s_low == alone.eta_s_low
    assert batch.eta_s_high - alone.eta_s_high == pytest.approx(1.5 * 20.0)


def test_what_runs_already_counts_at_worst_and_with_doubt() -> None:
    idle, busy = (
        estimate_wait(JOB, [], {}, replace(NOTHING, running_seconds=seconds)) for seconds in (0.0, 4.0)
    )
    assert busy.eta_s_low == idle.eta_s_low
    assert busy.eta_s_high - idle.eta_s_high == pytest.approx(1.5 * 4.0)


def test_the_tenants_own_lanes_count_only_as_far_as_they_go_work_ahead() -> None:
    own = replace(rival(band=Band.INTERACTIVE), tenant_id="ada")
    assert estimate_wait(JOB, [own], {}, NOTHING) == estimate_wait(JOB, [], {}, NOTHING)


def test_a_heavier_tenant_waits_less_for_others() -> None:
    estimate = estimate_wait(JOB, [rival()], {"ada": 4, "bob": 1}, replace(NOTHING, work_seconds=6.0))
    assert (estimate.ahead, estimate.eta_s_low) == (1, 2.0 + 6.0 + 8.0 / 4)


def test_a_short_queue_goes_first_as_a_whole_and_no_more_than_that() -> None:
    estimate = estimate_wait(JOB, [rival(num_ready=3, work=1.0)], {"bob": 100}, NOTHING)
    assert (estimate.ahead, estimate.eta_s_low) == (3, 2.0 + 1.0)


def test_jobs_that_cost_nothing_are_all_ahead() -> None:
    estimate = estimate_wait(JOB, [rival(num_ready=7, work=0.0)], {}, NOTHING)
    assert (estimate.ahead, estimate.eta_s_low) == (7, 2.0)


def test_without_a_worker_the_wait_is_that_for_one() -> None:
    before = WorkAhead(num_jobs=4, work_seconds=8.0, running_seconds=4.0, num_workers=0)
    assert estimate_wait(JOB, [], {}, before) == estimate_wait(JOB, [], {}, replace(before, num_workers=1))


def test_jobs_of_other_models_stand_in_nobodys_way() -> None:
    assert estimate_wait(JOB, [rival(model="other")], {}, NOTHING) == estimate_wait(JOB, [], {}, NOTHING)


def test_workers_share_what_comes_work_ahead() -> None:
    before = WorkAhead(num_jobs=4, work_seconds=8.0, running_seconds=4.0, num_workers=1)
    one, four = estimate_wait(JOB, [], {}, before), estimate_wait(JOB, [], {}, replace(before, num_workers=4))
    assert (one.eta_s_low, four.eta_s_low) == (10.0, 4.0)
    assert four.eta_s_high < one.eta_s_high


@given(
    work=st.floats(0, 1e4),
    running=st.floats(0, 1e4),
    rivals=st.lists(
        st.builds(rival, st.integers(1, 100), st.floats(0, 1e4), st.sampled_from(Band)), max_size=4
    ),
    num_workers=st.integers(0, 8),
)
def test_the_range_is_one(work: float, running: float, rivals: list[LaneSize], num_workers: int) -> None:
    before = WorkAhead(num_jobs=3, work_seconds=work, running_seconds=running, num_workers=num_workers)
    estimate = estimate_wait(JOB, rivals, {}, before)
    assert round(JOB.cost_seconds, 3) <= estimate.eta_s_low <= estimate.eta_s_high
    assert estimate.ahead >= before.num_jobs


@given(
    seconds=st.tuples(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1e3)),
    more=st.tuples(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1e3)),
    band=st.sampled_from(Band),
    weight=st.sampled_from([0.25, 1.0, 4.0]),
    num_workers=st.integers(0, 8),
)
def test_more_work_ahead_never_makes_the_wait_shorter(
    seconds: tuple[float, float, float],
    more: tuple[float, float, float],
    band: Band,
    weight: float,
    num_workers: int,
) -> None:
    def wait(own: float, running: float, others: float) -> QueueEstimate:
        before = WorkAhead(num_jobs=3, work_seconds=own, running_seconds=running, num_workers=num_workers)
        return estimate_wait(JOB, [rival(work=others, band=band)], {"bob": weight}, before)

    less = wait(*seconds)
    rounding = 0.002
    for index in range(3):
        added = [value + more[index] * (place == index) for place, value in enumerate(seconds)]
        worse = wait(*added)
        assert worse.eta_s_low >= less.eta_s_low - rounding
        least = more[index] / max(num_workers, 1)
        assert worse.eta_s_high >= less.eta_s_high + least - rounding
