"""How long a queued job is told that it will wait."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.job import Band, Job, JobStatus
from diffuserve.jobs.estimate import Before, LaneSize, estimate_wait

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
NOTHING = Before(num_jobs=0, work_seconds=0.0, running_seconds=0.0, num_workers=1)


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


def test_jobs_of_other_models_stand_in_nobodys_way() -> None:
    assert estimate_wait(JOB, [rival(model="other")], {}, NOTHING) == estimate_wait(JOB, [], {}, NOTHING)


def test_workers_share_what_comes_before() -> None:
    before = Before(num_jobs=4, work_seconds=8.0, running_seconds=4.0, num_workers=1)
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
    before = Before(num_jobs=3, work_seconds=work, running_seconds=running, num_workers=num_workers)
    estimate = estimate_wait(JOB, rivals, {}, before)
    assert round(JOB.cost_seconds, 3) <= estimate.eta_s_low <= estimate.eta_s_high
    assert estimate.ahead >= before.num_jobs
