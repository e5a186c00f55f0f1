"""Estimates learn from the ends of jobs that were told one."""

from dataclasses import replace

from diffuserve.domain.jobs.job import Band, Job, QueueEstimate
from diffuserve.jobs.reads.past_estimates import PastEstimates
from support.simulated_queue import MODEL, new_simulated_job

_TOLD = QueueEstimate(0, 1.0, 4.0)
_JOB = new_simulated_job(0, "ada", Band.STANDARD, 0.0, 1.0).job


def jobs_like(job: Job, count: int = 30) -> list[Job]:
    return [replace(job, id=f"{job.tenant_id} {job.model} {number}") for number in range(count)]


def ended(past: PastEstimates, end: float | None, job: Job = _JOB) -> None:
    """Have thirty jobs like this one end so many seconds after they were told their estimate."""
    for each in jobs_like(job):
        past.note(each, 100.0, _TOLD)
    past.settle({each.id: None if end is None else 100.0 + end for each in jobs_like(job)})


def test_late_ends_move_the_high_end_and_early_ones_the_low_end() -> None:
    late, early = PastEstimates(), PastEstimates()
    ended(late, 8.0)
    ended(early, 0.5)
    assert late.widen(_JOB, _TOLD) == QueueEstimate(0, 1.0, 8.0)
    assert early.widen(_JOB, _TOLD) == QueueEstimate(0, 0.5, 4.0)


def test_a_range_that_is_right_again_narrows_as_soon_as_the_old_ends_are_forgotten() -> None:
    past = PastEstimates()
    ended(past, 8.0)
    for _ in range(3):
        ended(past, 3.0)
    assert past.widen(_JOB, _TOLD) == _TOLD


def test_other_tenants_other_models_and_jobs_that_did_not_succeed_teach_nothing() -> None:
    past = PastEstimates()
    ended(past, 8.0, replace(_JOB, model="other"))
    ended(past, 8.0, replace(_JOB, tenant_id="one that lets its own jobs wait"))
    ended(past, None)
    assert past.widen(_JOB, _TOLD) == _TOLD
    assert past.job_ids == []


def test_what_a_job_was_told_first_counts() -> None:
    past = PastEstimates()
    for job in jobs_like(_JOB):
        past.note(job, 100.0, _TOLD)
        past.note(job, 107.9, QueueEstimate(0, 0.05, 0.2))
    past.settle({job.id: 108.0 for job in jobs_like(_JOB)})
    assert past.widen(_JOB, _TOLD) == QueueEstimate(0, 1.0, 8.0)


def test_only_some_jobs_of_a_tenant_and_of_all_are_awaited_and_none_without_a_range() -> None:
    past = PastEstimates()
    past.note(_JOB, 0.0, QueueEstimate(0, None, None, "no worker serves it"))
    assert past.job_ids == []
    for number in range(20):
        for job in jobs_like(replace(_JOB, tenant_id=f"tenant {number}"), 100):
            past.note(job, 0.0, _TOLD)
        assert len(past.job_ids) == min(64 * (number + 1), 512)


def test_what_was_told_before_an_outage_of_a_models_workers_is_forgotten() -> None:
    past = PastEstimates()
    past.note(_JOB, 0.0, _TOLD)
    past.note(replace(_JOB, id="two", model="other"), 0.0, _TOLD)
    past.forget(lambda model: model == MODEL)
    assert past.job_ids == ["two"]
