"""Estimates learn from the ends of jobs that were told one."""

from diffuserve.domain.jobs.job import QueueEstimate
from diffuserve.jobs.reads.past_estimates import PastEstimates

_TOLD = QueueEstimate(0, 1.0, 4.0)


def ended(past: PastEstimates, end: float | None, model: str = "tiny") -> None:
    """Have thirty jobs of a model end so many seconds after they were told their estimate."""
    names = [f"{model} {number}" for number in range(30)]
    for name in names:
        past.note(model, name, 100.0, _TOLD)
    past.settle(dict.fromkeys(names, None if end is None else 100.0 + end))


def test_late_ends_move_the_high_end_and_early_ones_the_low_end() -> None:
    late, early = PastEstimates(), PastEstimates()
    ended(late, 8.0)
    ended(early, 0.5)
    assert late.widen("tiny", _TOLD) == QueueEstimate(0, 1.0, 8.0)
    assert early.widen("tiny", _TOLD) == QueueEstimate(0, 0.5, 4.0)


def test_a_range_that_is_right_again_narrows_as_soon_as_the_old_ends_are_forgotten() -> None:
    past = PastEstimates()
    ended(past, 8.0)
    for _ in range(3):
        ended(past, 3.0)
    assert past.widen("tiny", _TOLD) == _TOLD


def test_other_models_and_jobs_that_did_not_succeed_teach_nothing() -> None:
    past = PastEstimates()
    ended(past, 8.0, "other")
    ended(past, None)
    assert past.widen("tiny", _TOLD) == _TOLD
    assert past.job_ids == []


def test_what_a_job_was_told_first_counts() -> None:
    past = PastEstimates()
    for number in range(30):
        past.note("tiny", f"job {number}", 100.0, _TOLD)
        past.note("tiny", f"job {number}", 107.9, QueueEstimate(0, 0.05, 0.2))
    past.settle({f"job {number}": 108.0 for number in range(30)})
    assert past.widen("tiny", _TOLD) == QueueEstimate(0, 1.0, 8.0)


def test_only_some_jobs_of_a_model_are_awaited_and_none_without_a_range() -> None:
    past = PastEstimates()
    past.note("tiny", "unknown", 0.0, QueueEstimate(0, None, None, "no worker serves it"))
    for number in range(1_000):
        past.note("tiny", f"job {number}", 0.0, _TOLD)
        past.note("other", f"other {number}", 0.0, _TOLD)
    assert len(past.job_ids) == 2 * 64
    assert "unknown" not in past.job_ids


def test_what_was_told_before_an_outage_of_a_models_workers_is_forgotten() -> None:
    past = PastEstimates()
    past.note("tiny", "one", 0.0, _TOLD)
    past.note("other", "two", 0.0, _TOLD)
    past.forget(lambda model: model == "tiny")
    assert past.job_ids == ["two"]
