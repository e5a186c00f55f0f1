"""Jobs that must be exact, and the workers' reports about a model's weights."""

from collections.abc import Iterable

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.workers.readiness import workers_of
from diffuserve.domain.workers.worker import Worker, WorkerReport


def check_exact(model: str, workers: Iterable[Worker]) -> None:
    """Raise `InvalidParams` if a model has workers that denoise, and the weights of all are quantized.

    If there is no worker, or one that has not reported its weights yet, the job waits like any other.
    """
    found = {worker.report.quantization for worker in workers_of(model, workers) if worker.role.denoises}
    if found and not found & {Quantization.NONE, None}:
        kinds = " and ".join(quantizations(model, workers))
        remedy = f"every worker of {model} has its weights in {kinds}; leave it out, or start one without"
        raise InvalidParams("exact", True, remedy)


def quantizations(model: str, workers: Iterable[Worker]) -> tuple[str, ...]:
    """Return the quantizations of a model's weights, as reported by its workers."""
    found = {worker.report.quantization for worker in workers_of(model, workers)}
    return tuple(sorted(kind for kind in found if kind is not None))


def offloads(model: str, workers: Iterable[Worker]) -> tuple[str, ...]:
    """Return which weights of a model stay on the host, as reported by its workers."""
    found = {worker.report.residency for worker in workers_of(model, workers)}
    return tuple(sorted({residency.mode.value for residency in found if residency is not None}))


def is_exact(report: WorkerReport) -> bool:
    """Return whether a worker has said that its weights are not quantized."""
    return report.quantization == Quantization.NONE
