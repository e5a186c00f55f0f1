"""Readiness of workers: whether one of them would run a job now, and if not, why."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

from diffuserve.domain.workers.worker import Worker, WorkerState

_READY_STATES = (WorkerState.READY, WorkerState.OCCUPIED)
_REASONS = (
    (WorkerState.INITIALIZING, "loading the model"),
    (WorkerState.STALLED, "stuck, and being restarted"),
    (WorkerState.DRAINING, "draining"),
    (WorkerState.LOST, "lost: without a heartbeat for too long"),
)


class ModelStatus(StrEnum):
    """Readiness of a model: jobs run at once, run as soon as a worker has loaded it, or wait for a worker."""

    READY = "ready"
    LOADING = "loading"
    UNAVAILABLE = "unavailable"


def is_ready(worker: Worker) -> bool:
    """Return whether a worker claims jobs, or would once it has room."""
    return worker.state in _READY_STATES and not worker.is_draining


def status_of(model: str, workers: Iterable[Worker], expected: Collection[str] = ()) -> ModelStatus:
    """Return the readiness of a model by the workers that offer it and start jobs: not those that decode.

    Workers that will offer the `expected` models have been started, and have not registered yet.
    """
    offering = [worker for worker in workers if model in worker.models and worker.role.denoises]
    if any(map(is_ready, offering)):
        return ModelStatus.READY
    is_loading = any(worker.state is WorkerState.INITIALIZING for worker in offering)
    is_expected = model in expected and all(worker.state is WorkerState.LOST for worker in offering)
    return ModelStatus.LOADING if is_loading or is_expected else ModelStatus.UNAVAILABLE


def workers_of(model: str, workers: Iterable[Worker]) -> list[Worker]:
    """Return the workers that offer a model, and are neither lost nor leaving."""
    return [
        worker
        for worker in workers
        if model in worker.models and worker.state is not WorkerState.LOST and not worker.is_draining
    ]


def why_not_ready(workers: Sequence[Worker]) -> str | None:
    """Return why no worker would run a job now, `None` if one would."""
    workers = [worker for worker in workers if worker.role.denoises]
    if any(map(is_ready, workers)):
        return None
    if not workers:
        return "no worker has registered yet; `diffuserve worker` starts one"
    counts = Counter(WorkerState.DRAINING if worker.is_draining else worker.state for worker in workers)
    groups = [f"{_workers(counts[state])} {words}" for state, words in _REASONS if counts[state]]
    progress = [str(worker.report.loading) for worker in workers if worker.report.loading is not None]
    return f"no worker is ready: {'; '.join(groups)}{f' ({progress[0]})' if len(progress) == 1 else ''}"


def _workers(number: int) -> str:
    return "1 worker is" if number == 1 else f"{number} workers are"
