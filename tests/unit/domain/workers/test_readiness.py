"""Readiness is decided by what the workers report, and a reason is given where there is none."""

from dataclasses import replace

import pytest

from diffuserve.domain.workers.readiness import ModelStatus, status_of, why_not_ready
from diffuserve.domain.workers.worker import LoadProgress, Worker, WorkerReport, WorkerState


def make_worker(state: WorkerState, loading: LoadProgress | None = None, model: str = "m") -> Worker:
    return Worker(
        id="w",
        name="",
        state=state,
        labels={},
        models=(model,),
        report=WorkerReport(state=state, loading=loading),
        registered_at=0.0,
        heartbeat_at=0.0,
    )


@pytest.mark.parametrize("state", [WorkerState.READY, WorkerState.OCCUPIED])
def test_one_worker_that_takes_jobs_is_enough(state: WorkerState) -> None:
    assert why_not_ready([make_worker(WorkerState.LOST), make_worker(state)]) is None


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (WorkerState.INITIALIZING, "1 worker is loading the model"),
        (WorkerState.DRAINING, "1 worker is draining"),
        (WorkerState.STALLED, "1 worker is stuck"),
        (WorkerState.LOST, "1 worker is lost"),
    ],
)
def test_the_reason_names_what_the_workers_do_instead(state: WorkerState, words: str) -> None:
    assert words in str(why_not_ready([make_worker(state)]))


def test_a_worker_that_is_to_drain_takes_no_jobs() -> None:
    draining = replace(make_worker(WorkerState.READY), is_draining=True)
    assert "1 worker is draining" in str(why_not_ready([draining]))
    assert status_of("m", [draining]) is ModelStatus.UNAVAILABLE


def test_without_workers_the_reason_says_how_to_start_one() -> None:
    assert "diffuserve worker" in str(why_not_ready([]))


def test_several_workers_are_counted_and_the_progress_of_a_single_one_is_told() -> None:
    loading = make_worker(
        WorkerState.INITIALIZING, LoadProgress(phase="weights", bytes_read=3, bytes_total=4)
    )
    lost = make_worker(WorkerState.LOST)
    reason = str(why_not_ready([loading, lost, lost]))
    assert "1 worker is loading the model; 2 workers are lost" in reason
    assert "75%" in reason


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ([], ModelStatus.UNAVAILABLE),
        ([WorkerState.LOST], ModelStatus.UNAVAILABLE),
        ([WorkerState.LOST, WorkerState.INITIALIZING], ModelStatus.LOADING),
        ([WorkerState.INITIALIZING, WorkerState.OCCUPIED], ModelStatus.READY),
    ],
)
def test_the_status_of_a_model_is_that_of_its_best_worker(
    states: list[WorkerState], status: ModelStatus
) -> None:
    assert status_of("m", [make_worker(state) for state in states]) is status
    assert status_of("other", [make_worker(state) for state in states]) is ModelStatus.UNAVAILABLE


def test_a_model_whose_worker_was_started_is_loading_until_that_has_registered() -> None:
    assert status_of("m", [], {"m"}) is ModelStatus.LOADING
    assert status_of("m", [make_worker(WorkerState.LOST)], {"m"}) is ModelStatus.LOADING
    assert status_of("m", [make_worker(WorkerState.READY)], {"m"}) is ModelStatus.READY
    assert status_of("m", [make_worker(WorkerState.DRAINING)], {"m"}) is ModelStatus.UNAVAILABLE
    assert status_of("other", [], {"m"}) is ModelStatus.UNAVAILABLE


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (LoadProgress(phase="starting"), "starting"),
        (
            LoadProgress(phase="weights", bytes_read=3_100_000_000, bytes_total=33_700_000_000),
            "3.1 of 33.7 GB",
        ),
        (LoadProgress(phase="weights", bytes_read=5_000_000, bytes_total=15_000_000), "5.0 of 15.0 MB, 33%"),
        (LoadProgress(phase="weights", bytes_read=16_000_000, bytes_total=15_000_000), "100%"),
    ],
)
def test_progress_is_told_in_words(progress: LoadProgress, words: str) -> None:
    assert words in str(progress)
