"""Whether an attempt that went wrong is followed by another. Pure; causes are counted apart."""

from dataclasses import dataclass

from diffuserve.domain.job import JobError
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.records import JobRecord


@dataclass(frozen=True)
class Verdict:
    """The job's new counts, and either the error that it ends with or the pause before the next try."""

    num_transient: int
    num_worker_lost: int
    error: JobError | None = None
    pause_seconds: float = 0.0


def after_failure(record: JobRecord, error: JobError, config: StoreConfig, jitter: float) -> Verdict:
    """`jitter` in 0…1 spreads retries of jobs that failed together."""
    failures = record.num_transient + 1 if error.retryable else record.num_transient
    if not error.retryable or failures > config.max_transient_retries:
        return Verdict(failures, record.num_worker_lost, error)
    longest = min(config.retry_base_seconds * 2.0 ** (failures - 1), config.retry_cap_seconds)
    return Verdict(failures, record.num_worker_lost, pause_seconds=longest * (0.5 + 0.5 * jitter))


def after_loss(record: JobRecord, config: StoreConfig) -> Verdict:
    """The worker died, or was not heard for a whole lease."""
    losses = record.num_worker_lost + 1
    if losses <= config.max_worker_losses:
        return Verdict(record.num_transient, losses)
    message = f"{losses} workers were lost while they ran this job; it may be what kills them"
    return Verdict(record.num_transient, losses, JobError("worker_lost", message))
