"""Leases that end against their workers' will: their time, or that of their jobs, is over."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.job import JobError, JobStatus
from diffuserve.domain.outcomes import LOST
from diffuserve.domain.worker import ReleaseCause
from diffuserve.events.base import worker_topic
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.finish import EndedAttempts, end_leases
from diffuserve.jobs.records import JobRecord
from diffuserve.jobs.retries import after_loss
from diffuserve.jobs.tally import AttemptKey


def lose(transaction: Transaction, expired: Sequence[sa.Row[Any]]) -> None:
    """End leases that were not renewed: their workers are presumed dead."""

    def end(ended: EndedAttempts, record: JobRecord) -> None:
        ended.follow(record, after_loss(record, transaction.config), ReleaseCause.WORKER_LOST)

    _revoke(transaction, expired, end)
    transaction.num_expired += len(expired)


def stop_late(transaction: Transaction, late: Sequence[sa.Row[Any]]) -> None:
    """End jobs that ran longer than their `timeout`, and charge them for that long."""

    def end(ended: EndedAttempts, record: JobRecord) -> None:
        message = f"the job ran longer than its timeout of {record.timeout:g} s"
        ended.fail(record, JobError("timeout", message))

    _revoke(transaction, late, end, charges_timeout=True)


def _revoke(
    transaction: Transaction,
    revoked: Sequence[sa.Row[Any]],
    end: Callable[[EndedAttempts, JobRecord], object],
    *,
    charges_timeout: bool = False,
) -> None:
    """End leases against their workers' will, and notify the workers."""
    ended = EndedAttempts(transaction)
    records = end_leases(transaction, revoked)
    timeouts = {job_id: record.timeout or 0.0 for job_id, record in records.items()}
    seconds = timeouts if charges_timeout else {}
    ended.settle(revoked, seconds)
    for lease in revoked:
        # Without its worker no report of this attempt counts as a repeated one (`_ended_before`).
        record = replace(records[lease.job_id], worker_id=None)
        if lease.is_canceling:
            ended.finish(record, JobStatus.CANCELED)
        else:
            end(ended, record)
        outcome = JobStatus.FAILED.value if charges_timeout else LOST
        transaction.tally.add_attempt(AttemptKey.under(lease, outcome), seconds.get(lease.job_id, 0.0))
        transaction.publish(worker_topic(lease.worker_id), {"type": "lost", "job_id": lease.job_id})
    ended.save()
