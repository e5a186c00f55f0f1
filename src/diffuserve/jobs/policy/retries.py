"""Decisions whether another attempt follows a failed one: pure, with the causes counted apart."""

from dataclasses import dataclass, replace

from diffuserve.domain.jobs.job import JobError
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.records import JobRecord

_MAX_LATENTS_LOST = 1


@dataclass(frozen=True)
class RetryDecision:
    """A job's new counts of attempts, and either its final error or the pause before the next attempt."""

    num_transient: int
    num_worker_lost: int
    error: JobError | None = None
    pause_seconds: float = 0.0


def after_failure(record: JobRecord, error: JobError, config: StoreConfig, jitter: float) -> RetryDecision:
    """Decide after an attempt that failed with `error`, by exponential backoff.

    `jitter` in 0…1 is a random number: it spreads the retries of jobs that failed together over the
    second half of the pause.
    """
    failures = record.num_transient + 1 if error.retryable else record.num_transient
    is_last = failures > config.max_transient_retries or not _may_try_again(
        replace(record, num_transient=failures)
    )
    if not error.retryable or is_last:
        return RetryDecision(failures, record.num_worker_lost, error)
    longest = min(config.retry_base_seconds * 2.0 ** (failures - 1), config.retry_cap_seconds)
    return RetryDecision(failures, record.num_worker_lost, pause_seconds=longest * (0.5 + 0.5 * jitter))


def after_loss(record: JobRecord, config: StoreConfig) -> RetryDecision:
    """Decide after a worker died, or sent no heartbeat for a whole lease.

    The next attempt needs no pause, since most losses are not the job's fault.
    """
    losses = record.num_worker_lost + 1
    if losses <= config.max_worker_losses and _may_try_again(replace(record, num_worker_lost=losses)):
        return RetryDecision(record.num_transient, losses)
    lost = "1 worker was" if losses == 1 else f"{losses} workers were"
    message = f"{lost} lost while running this job; it may be the cause"
    return RetryDecision(record.num_transient, losses, JobError("worker_lost", message))


def may_start_anew(record: JobRecord) -> bool:
    """Return whether a job whose latents are unusable is denoised again, which happens only once."""
    num_lost = record.num_latents_lost + 1
    counted = replace(record, num_latents_lost=num_lost)
    return record.is_denoised and num_lost <= _MAX_LATENTS_LOST and _may_try_again(counted)


def _may_try_again(record: JobRecord) -> bool:
    """Return whether fewer attempts have failed than may; one that was given back has not failed."""
    num_failed = record.num_transient + record.num_worker_lost + record.num_latents_lost
    return record.max_attempts is None or num_failed < record.max_attempts
