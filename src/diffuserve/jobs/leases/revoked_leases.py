"""Revoked leases: the time of the lease or of its job is over."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.jobs.job import JobError, JobStatus
from diffuserve.domain.jobs.outcomes import LOST
from diffuserve.domain.workers.worker import ReleaseCause
from diffuserve.events.base import worker_topic
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.database.tally import AttemptKey
from diffuserve.jobs.leases.ended_attempts import EndedAttempts, attempt_of, end_leases
from diffuserve.jobs.policy.charges import seconds_of_abandoned
from diffuserve.jobs.policy.retries import after_loss
from diffuserve.jobs.records import JobRecord


def lose(transaction: Transaction, expired: Sequence[sa.Row[Any]]) -> None:
    """End leases that were not renewed: their workers are presumed dead."""

    def end(ended: EndedAttempts, record: JobRecord) -> JobStatus:
        return ended.follow(record, after_loss(record, transaction.config), ReleaseCause.WORKER_LOST)

    _revoke(transaction, expired, end, LOST)
    transaction.num_expired += len(expired)


def stop_late(transaction: Transaction, late: Sequence[sa.Row[Any]]) -> None:
    """End jobs that ran longer than their `timeout`, and charge them for that long."""

    def end(ended: EndedAttempts, record: JobRecord) -> JobStatus:
        message = f"the job ran longer than its timeout of {record.timeout:g} s"
        return ended.fail(record, JobError("timeout", message))

    _revoke(transaction, late, end, JobStatus.FAILED.value)


def _revoke(
    transaction: Transaction,
    revoked: Sequence[sa.Row[Any]],
    end: Callable[[EndedAttempts, JobRecord], JobStatus],
    outcome: str,
) -> None:
    """Revoke leases, and notify their workers."""
    ended = EndedAttempts(transaction)
    records = end_leases(transaction, revoked)
    seconds = {
        lease.job_id: _seconds_of(records[lease.job_id], lease, outcome, transaction.now) for lease in revoked
    }
    ended.settle(revoked, {job_id: seconds[job_id] - records[job_id].kept_seconds for job_id in seconds})
    for lease in revoked:
        # With its worker removed, no report of this attempt counts as repeated (`_ended_before`).
        record = replace(records[lease.job_id], worker_id=None)
        status = ended.cancel(record, seconds[record.id]) if lease.is_canceling else end(ended, record)
        spent = seconds[record.id] if status.is_final else 0.0  # counted with the next attempt
        transaction.tally.add_attempt(AttemptKey.under(lease, outcome), spent)
        transaction.publish(worker_topic(lease.worker_id), {"type": "lost", "job_id": lease.job_id})
    ended.save()


def _seconds_of(record: JobRecord, lease: sa.Row[Any], outcome: str, now: float) -> float:
    """Return the device-seconds to charge for an attempt that its worker no longer reports on.

    A late job had its `timeout` and the time since it should have ended. An outage that delayed its end does
    not count.
    """
    attempt = attempt_of(lease, record, now)
    if outcome != LOST:
        had_seconds: float = now - lease.stop_at + (record.timeout or 0.0)
        return attempt.kept_seconds + min(had_seconds, attempt.held_seconds)
    return seconds_of_abandoned(attempt, attempt.kept_seconds) if lease.is_canceling else attempt.kept_seconds
