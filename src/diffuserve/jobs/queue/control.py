"""Canceling, deleting and requeueing jobs that exist."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import sqlalchemy as sa

from diffuserve.domain.errors import Conflict, DiffuserveError, JobNotFound
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.events.base import worker_topic
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import Command
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.files.links import jobs_without_files
from diffuserve.jobs.queue import batch_items, ready_queue
from diffuserve.jobs.queue.changes import Change, load_records, save_changes
from diffuserve.jobs.records import JobRecord

jobs, leases = schema.jobs, schema.leases

_REQUEUEABLE = (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.EXPIRED)


@dataclass(frozen=True)
class CancelJob(Command[None]):
    """End a queued job at once, and a running one as soon as its worker has stopped it.

    `tenant_id` is the job's tenant, or `None` for any. The outcome is `JobNotFound` for another tenant's.
    """

    job_id: str
    tenant_id: str | None = None

    @classmethod
    def apply_many(cls, transaction: Transaction, commands: Sequence[Self]) -> list[DiffuserveError | None]:
        records = load_records(transaction, {command.job_id for command in commands})
        found = [
            records[command.job_id]
            for command in commands
            if _is_visible(records.get(command.job_id), command.tenant_id)
        ]
        _cancel(transaction, {record.id: record for record in found}.values())
        return [_not_found(command.job_id, records, command.tenant_id) for command in commands]


@dataclass(frozen=True)
class DeleteJob(Command[None]):
    """Cancel a job and hide it from now on; the reaper removes its row once it is final."""

    job_id: str
    tenant_id: str | None = None

    @classmethod
    def apply_many(cls, transaction: Transaction, commands: Sequence[Self]) -> list[DiffuserveError | None]:
        errors = CancelJob.apply_many(
            transaction, [CancelJob(command.job_id, command.tenant_id) for command in commands]
        )
        if transaction.is_retry:
            errors = _without_own(transaction, commands, errors)
        job_ids = [command.job_id for command, error in zip(commands, errors, strict=True) if error is None]
        if job_ids:
            transaction.execute(sa.update(jobs).where(jobs.c.id.in_(job_ids)).values(is_erased=True))
        return errors


@dataclass(frozen=True)
class RequeueJob(Command[None]):
    """Queue a job that failed, expired or was canceled at its old place, with all its attempts.

    The outcome is `Conflict` for a job in another state, or one that names an image which is gone.
    """

    job_id: str

    @classmethod
    def apply_many(cls, transaction: Transaction, commands: Sequence[Self]) -> list[DiffuserveError | None]:
        records = load_records(transaction, {command.job_id for command in commands})
        incomplete = jobs_without_files(transaction, records.keys())
        requeueable = [
            record
            for record in records.values()
            if record.status in _REQUEUEABLE
            and record.id not in incomplete
            and _is_visible(record, tenant_id=None)
        ]
        _requeue(transaction, requeueable)
        return [
            _incomplete_error(command.job_id)
            if command.job_id in incomplete
            else _requeue_error(command.job_id, records.get(command.job_id), transaction.is_retry)
            for command in commands
        ]


def _without_own(
    transaction: Transaction, commands: Sequence[DeleteJob], errors: Sequence[DiffuserveError | None]
) -> list[DiffuserveError | None]:
    """Return the errors except those about a tenant's own jobs, which the lost commit may have hidden."""
    records = load_records(transaction, {command.job_id for command in commands})
    return [
        None if _belongs_to(records.get(command.job_id), command.tenant_id) else error
        for command, error in zip(commands, errors, strict=True)
    ]


def _cancel(transaction: Transaction, records: Collection[JobRecord]) -> None:
    queued = [record for record in records if record.status is JobStatus.QUEUED]
    running = [record for record in records if record.status is JobStatus.RUNNING]
    ready_queue.leave(transaction, queued)
    _ask_workers_to_cancel(transaction, running)
    now = transaction.now
    ended = [replace(each, status=JobStatus.CANCELED, finished_at=now, latents=None) for each in queued]
    canceling = [replace(record, status=JobStatus.CANCELING) for record in running]
    changes = [Change(record, record.status.value, JobStatus.QUEUED) for record in ended]
    changes += [Change(record, record.status.value, JobStatus.RUNNING) for record in canceling]
    save_changes(transaction, changes)


def _ask_workers_to_cancel(transaction: Transaction, records: Collection[JobRecord]) -> None:
    if records:
        job_ids = [record.id for record in records]
        transaction.execute(sa.update(leases).where(leases.c.job_id.in_(job_ids)).values(is_canceling=True))
    for record in records:
        assert record.worker_id is not None
        transaction.publish(worker_topic(record.worker_id), {"type": "cancel", "job_id": record.id})


def _requeue(transaction: Transaction, ended: Collection[JobRecord]) -> None:
    records = [_fresh(record) for record in ended]
    changes = [
        Change(fresh, "requeued", record.status, {"cause": "operator"})
        for fresh, record in zip(records, ended, strict=True)
    ]
    save_changes(transaction, changes)
    job_ids = [record.id for record in records]
    transaction.execute(sa.update(jobs).where(jobs.c.id.in_(job_ids)).values(deadline=None, finish_by=None))
    ready_queue.put(transaction, records)
    ledger = ready_queue.Ledger()
    for record in records:
        ledger.count_queued(record.tenant_id, 1)
    ledger.save(transaction)
    batch_ids = {record.batch_id for record in records if record.batch_id is not None}
    batch_items.reopen(transaction, batch_ids)


def _fresh(record: JobRecord) -> JobRecord:
    """Return the job as first queued, but with its numbers of attempts and its place."""
    return replace(
        record,
        status=JobStatus.QUEUED,
        checkpoint=None,
        kept_seconds=0.0,
        num_transient=0,
        num_worker_lost=0,
        worker_id=None,
        deadline=None,
        finish_by=None,
        finished_at=None,
        actual_seconds=None,
        error=None,
        latents=None,
        num_latents_lost=0,
    )


def _incomplete_error(job_id: str) -> Conflict:
    return Conflict(f"job {job_id} names an image that was deleted; upload it again, and submit a new job")


def _requeue_error(job_id: str, record: JobRecord | None, is_retry: bool) -> DiffuserveError | None:
    """Return why a job in its previous state cannot be requeued; `None` if it can."""
    if record is None or not _is_visible(record, tenant_id=None):
        return JobNotFound(f"no job {job_id}")
    if record.status in _REQUEUEABLE:
        return None
    if is_retry and record.status is JobStatus.QUEUED:  # queued by the commit whose result was lost
        return None
    return Conflict(
        f"job {record.id} is {record.status}; only failed, canceled and expired jobs can be requeued"
    )


def _is_visible(record: JobRecord | None, tenant_id: str | None) -> bool:
    return _belongs_to(record, tenant_id) and record is not None and not record.is_erased


def _belongs_to(record: JobRecord | None, tenant_id: str | None) -> bool:
    return record is not None and tenant_id in (None, record.tenant_id)


def _not_found(job_id: str, records: Mapping[str, JobRecord], tenant_id: str | None) -> JobNotFound | None:
    return None if _is_visible(records.get(job_id), tenant_id) else JobNotFound(f"no job {job_id}")
