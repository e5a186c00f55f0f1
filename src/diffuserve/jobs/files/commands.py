"""Writes to the table of files."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, FileInUse, FileNotKnown, FilesFull, TooLarge
from diffuserve.domain.jobs.input_file import InputFile, NewFile
from diffuserve.domain.jobs.job import FINAL_STATUSES, JobStatus
from diffuserve.domain.tenant import Plan
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.files.records import dump_verdict, file_of

files, job_files, jobs = schema.files, schema.job_files, schema.jobs
file_batches = schema.file_batches

_MAX_SWEPT = 200
_UNFINISHED = sorted(set(JobStatus) - FINAL_STATUSES)
_MAY_RUN_AGAIN = sorted(set(JobStatus) - {JobStatus.SUCCEEDED})


@dataclass(frozen=True)
class KeepFile(SingleCommand[InputFile | None]):
    """Keep an image that the tenant has uploaded already for `seconds` from now on.

    The outcome is the file as it was stored first, `None` if the tenant has no such image.
    """

    new: NewFile
    seconds: float

    def apply(self, transaction: Transaction) -> InputFile | None:
        return _keep(transaction, self.new, self.seconds)


@dataclass(frozen=True)
class AddFile(SingleCommand[InputFile]):
    """Enter a file that is stored already, for `seconds`; the outcome is the tenant's file.

    That is another one if the same image was uploaded meanwhile. The outcome is `FilesFull` if the plan
    allows no more, and `TooLarge` for a file that it would never allow.
    """

    new: NewFile
    seconds: float
    plan: Plan

    def apply(self, transaction: Transaction) -> InputFile | DiffuserveError:
        known = (
            _keep(transaction, self.new, self.seconds)
            if self.new.is_image
            else _stored(transaction, self.new)
        )
        if known is not None:
            return known
        refusal = _refusal(transaction, self.new, self.plan)
        return refusal or enter(transaction, self.new, self.seconds)


def enter(transaction: Transaction, new: NewFile, seconds: float) -> InputFile:
    """Enter a file that is kept for `seconds`, whatever the plan of its tenant."""
    now = transaction.now
    row = {**vars(new), "created_at": now, "expires_at": now + seconds}
    transaction.execute(sa.insert(files), row | {"verdict": dump_verdict(new.verdict)})
    return InputFile(**vars(new), created_at=now, expires_at=now + seconds)


@dataclass(frozen=True)
class DeleteFile(SingleCommand[None]):
    """Forget a file. The outcome is `FileNotKnown` for another tenant's, and `FileInUse` for one in use."""

    file_id: str
    tenant_id: str | None = None

    def apply(self, transaction: Transaction) -> DiffuserveError | None:
        rows = transaction.rows(sa.select(files.c.tenant_id).where(files.c.id == self.file_id))
        if not rows or self.tenant_id not in (None, rows[0].tenant_id):
            return None if transaction.is_retry else FileNotKnown(f"no file {self.file_id}")
        users = transaction.rows(_jobs_with(self.file_id, _UNFINISHED).limit(1))
        if users:
            return FileInUse(
                f"job {users[0].id}, which has not ended, needs file {self.file_id}; cancel the job, or wait"
            )
        if _batches_reading(transaction, self.file_id):
            return FileInUse(
                f"a batch that has not ended reads file {self.file_id}; cancel the batch, or wait"
            )
        transaction.execute(sa.delete(files).where(files.c.id == self.file_id))
        return None


@dataclass(frozen=True)
class ForgetExpired(SingleCommand[list[str]]):
    """Forget files that have expired, some at a time; the outcome is their ids.

    An image stays while a job needs it, or may need it again: a job that did not succeed can be requeued.
    """

    def apply(self, transaction: Transaction) -> list[str]:
        is_needed = _jobs_with(files.c.id, _MAY_RUN_AGAIN).where(~jobs.c.is_erased | ~_is_final()).exists()
        is_read = sa.select(file_batches.c.id).where(
            file_batches.c.input_file_id == files.c.id, file_batches.c.ended_at.is_(None)
        )
        is_due = files.c.expires_at <= transaction.now
        expired = sa.select(files.c.id).where(is_due, ~is_needed, ~is_read.exists())
        file_ids = [row.id for row in transaction.rows(expired.limit(_MAX_SWEPT))]
        if file_ids:
            transaction.execute(sa.delete(files).where(files.c.id.in_(file_ids)))
        return file_ids


def _is_final() -> sa.ColumnElement[bool]:
    return jobs.c.status.in_(sorted(FINAL_STATUSES))


def _jobs_with(file_id: Any, statuses: list[JobStatus]) -> sa.Select[Any]:
    """Select the jobs in one of these states that name a file."""
    return (
        sa.select(jobs.c.id)
        .join_from(job_files, jobs, jobs.c.id == job_files.c.job_id)
        .where(job_files.c.file_id == file_id, jobs.c.status.in_(statuses))
    )


def _batches_reading(transaction: Transaction, file_id: str) -> bool:
    is_read = sa.and_(file_batches.c.input_file_id == file_id, file_batches.c.ended_at.is_(None))
    return bool(transaction.rows(sa.select(file_batches.c.id).where(is_read).limit(1)))


def _stored(transaction: Transaction, new: NewFile) -> InputFile | None:
    """Return the file that an earlier attempt has entered, whose commit was lost."""
    rows = transaction.rows(sa.select(files).where(files.c.id == new.id)) if transaction.is_retry else []
    return file_of(rows[0]) if rows else None


def _keep(transaction: Transaction, new: NewFile, seconds: float) -> InputFile | None:
    is_same = sa.and_(
        files.c.tenant_id == new.tenant_id, files.c.sha256 == new.sha256, sa.text(schema.IS_IMAGE)
    )
    expires_at = transaction.now + seconds
    values = {"expires_at": expires_at, "verdict": dump_verdict(new.verdict)}
    transaction.execute(sa.update(files).where(is_same).values(values))
    rows = transaction.rows(sa.select(files).where(is_same))
    return file_of(rows[0]) if rows else None


def _refusal(transaction: Transaction, new: NewFile, plan: Plan) -> DiffuserveError | None:
    size, max_bytes, most = new.size_bytes, plan.max_files_bytes, plan.max_files
    if max_bytes is not None and size > max_bytes:
        return TooLarge(f"the file has {size:,} bytes; the plan {plan.name!r} allows {max_bytes:,} in all")
    totals = sa.select(
        sa.func.count().label("num_files"),
        sa.func.coalesce(sa.func.sum(files.c.size_bytes), 0).label("num_bytes"),
    )
    row = transaction.execute(totals.where(files.c.tenant_id == new.tenant_id)).one()
    count, total = int(row.num_files), int(row.num_bytes)
    if (most is None or count < most) and (max_bytes is None or total + size <= max_bytes):
        return None
    return FilesFull(
        f"tenant {new.tenant_id!r} has {count:,} files of {total:,} bytes, and its plan {plan.name!r} "
        f"allows {_shown(most)} of {_shown(max_bytes)} bytes; delete some, or wait until they expire"
    )


def _shown(limit: int | None) -> str:
    return "any number" if limit is None else f"{limit:,}"
