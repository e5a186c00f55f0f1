"""Batches from files: entered, taken by the process that works at them, and ended.

All that is known of such a batch is in the database after each step, so that another process continues where
one was killed. What a step writes outside of it, files, is entered by the command that ends the batch.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import BatchNotFound, Conflict, DiffuserveError, FileNotKnown, QueueFull
from diffuserve.domain.jobs.batch import NewBatch
from diffuserve.domain.jobs.file_batch import (
    FileBatchStatus,
    FileError,
    LineCounts,
    NewFileBatch,
    TokenCounts,
    file_batch_id_of,
)
from diffuserve.domain.jobs.input_file import FilePurpose, NewFile
from diffuserve.domain.jobs.webhook import WebhookEvent
from diffuserve.jobs.batches.cancellation import CancelBatch
from diffuserve.jobs.batches.submission import OpenBatch
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.files.commands import enter
from diffuserve.jobs.queue import idempotency
from diffuserve.jobs.queue.idempotency import Stamp, UsedKeys
from diffuserve.jobs.records import dump
from diffuserve.jobs.webhooks import outbox
from diffuserve.jobs.webhooks.outbox import WebhookNotice

batches, file_batches, files = schema.batches, schema.file_batches, schema.files
refused_lines = schema.refused_lines

_MAX_OPEN = 100  # of a tenant
_RETRY_SECONDS = 60.0
_KEPT_SECONDS = 30 * 86_400.0  # after the end
_TEXTS = ("metadata", "webhook")  # which are stored as JSON
_NOT_ENDED = sa.text("ended_at IS NULL")  # as the index writes it


@dataclass(frozen=True)
class CreateFileBatch(SingleCommand[str]):
    """Enter a batch whose file is to be read; the outcome is its id, or that of the idempotency key's batch.

    The outcome is `FileNotKnown` unless the tenant has such a file of lines, and `QueueFull` while it has too
    many batches that have not ended.
    """

    new: NewFileBatch
    stamp: Stamp | None = None

    def apply(self, transaction: Transaction) -> str | DiffuserveError:
        stamps = [] if self.stamp is None else [self.stamp]
        earlier = UsedKeys(transaction, stamps).find(self.stamp)
        if earlier is not None:
            return earlier
        if transaction.is_retry and _row(transaction, self.new.id) is not None:
            return self.new.id
        refusal = self._refusal(transaction)
        if refusal is not None:
            return refusal
        transaction.execute(sa.insert(file_batches), self._values(transaction.now))
        idempotency.keep(
            transaction, [idempotency.row(stamp, self.new.id, transaction.now) for stamp in stamps]
        )
        return self.new.id

    def _refusal(self, transaction: Transaction) -> DiffuserveError | None:
        new = self.new
        is_it = sa.and_(files.c.id == new.input_file_id, files.c.tenant_id == new.tenant_id)
        rows = transaction.rows(sa.select(files.c.purpose).where(is_it))
        if not rows:
            return FileNotKnown(f"no file {new.input_file_id!r}; upload it with the purpose 'batch'")
        if rows[0].purpose != FilePurpose.BATCH:
            return FileNotKnown(
                f"the purpose of file {new.input_file_id!r} is {rows[0].purpose!r}; upload it with 'batch'"
            )
        is_open = sa.and_(file_batches.c.tenant_id == new.tenant_id, _NOT_ENDED)
        count = transaction.execute(
            sa.select(sa.func.count()).select_from(file_batches).where(is_open)
        ).scalar()
        if int(count or 0) < _MAX_OPEN:
            return None
        message = f"tenant {new.tenant_id!r} has {_MAX_OPEN} batches that have not ended; wait until one has"
        return QueueFull(message, retry_after=_RETRY_SECONDS)

    def _values(self, now: float) -> dict[str, Any]:
        values = dict(vars(self.new))
        window, texts = values.pop("window_seconds"), {name: values.pop(name) for name in _TEXTS}
        return values | {
            **{name: None if value is None else dump(value) for name, value in texts.items()},
            "status": FileBatchStatus.VALIDATING.value,
            "created_at": now,
            "expires_at": now + window,
            "next_at": now,
        }


@dataclass(frozen=True)
class TakeFileBatch(SingleCommand[bool]):
    """Take a batch that is due, for `seconds`; the outcome is whether no other process has it."""

    batch_id: str
    seconds: float

    def apply(self, transaction: Transaction) -> bool:
        is_due = file_batches.c.next_at <= transaction.now
        return _change(transaction, self.batch_id, is_due, next_at=transaction.now + self.seconds)


@dataclass(frozen=True)
class PostponeFileBatch(SingleCommand[None]):
    """Let a batch be due again after `seconds`: keep it for longer, or give it back."""

    batch_id: str
    seconds: float

    def apply(self, transaction: Transaction) -> None:
        _change(transaction, self.batch_id, next_at=transaction.now + self.seconds)


@dataclass(frozen=True)
class CheckFileBatch(SingleCommand[None]):
    """Note what the lines of a batch are, once all are checked: their number, their cost, and their model."""

    batch_id: str
    num_lines: int
    cost_seconds: float
    model: str | None

    def apply(self, transaction: Transaction) -> None:
        is_before = file_batches.c.status == FileBatchStatus.VALIDATING.value
        values = {"num_lines": self.num_lines, "cost_seconds": self.cost_seconds, "model": self.model}
        _change(transaction, self.batch_id, is_before, **values)


@dataclass(frozen=True)
class StartFileBatch(SingleCommand[None]):
    """Begin to submit the lines of a batch, whose room in the queue is reserved.

    The outcome is what `OpenBatch` refuses it with, and then nothing has changed.
    """

    batch_id: str
    new: NewBatch

    def apply(self, transaction: Transaction) -> DiffuserveError | None:
        row = _row(transaction, self.batch_id)
        if row is None or row.ending is not None or row.status != FileBatchStatus.VALIDATING:
            return None
        opened = OpenBatch(self.batch_id, self.new).apply(transaction)
        if isinstance(opened, DiffuserveError):
            return opened
        status = FileBatchStatus.IN_PROGRESS.value
        _change(transaction, self.batch_id, status=status, in_progress_at=transaction.now)
        return None


@dataclass(frozen=True)
class StopFileBatch(SingleCommand[None]):
    """Let a batch end early, as `ending` says; what it has done until then is written down.

    `tenant_id` is the batch's tenant, or `None` for any. The outcome is `BatchNotFound` for another tenant's,
    and `Conflict` for one that has ended.
    """

    batch_id: str
    ending: str
    tenant_id: str | None = None

    def apply(self, transaction: Transaction) -> DiffuserveError | None:
        row = _row(transaction, self.batch_id)
        file_batch_id = file_batch_id_of(self.batch_id)
        if row is None or self.tenant_id not in (None, row.tenant_id):
            return BatchNotFound(f"no batch {file_batch_id}")
        if row.ended_at is not None:
            was_stopped = row.status == self.ending
            return None if was_stopped else Conflict(f"batch {file_batch_id} has ended: it is {row.status}")
        if row.ending is not None or row.status == FileBatchStatus.FINALIZING:
            return None
        asked_at = transaction.now if self.ending == FileBatchStatus.CANCELLED else None
        _change(transaction, row.id, ending=self.ending, cancelling_at=asked_at, next_at=transaction.now)
        if row.status == FileBatchStatus.IN_PROGRESS:
            CancelBatch(self.batch_id).apply(transaction)
        return None


@dataclass(frozen=True)
class FinalizeFileBatch(SingleCommand[None]):
    """Begin to write the files of a batch that is over."""

    batch_id: str

    def apply(self, transaction: Transaction) -> None:
        is_before = file_batches.c.status == FileBatchStatus.IN_PROGRESS.value
        status = FileBatchStatus.FINALIZING.value
        _change(transaction, self.batch_id, is_before, status=status, finalizing_at=transaction.now)


@dataclass(frozen=True, kw_only=True)
class FileBatchEnd:
    """What becomes of a batch at its end; each of its files is stored already, and kept for some seconds."""

    status: FileBatchStatus
    output: NewFile | None = None
    error: NewFile | None = None
    counts: LineCounts = field(default_factory=LineCounts)
    tokens: TokenCounts | None = None
    errors: Sequence[FileError] = ()


@dataclass(frozen=True)
class EndFileBatch(SingleCommand[bool]):
    """End a batch, and enter its files; the outcome is false if it has ended already, with other files."""

    batch_id: str
    ended: FileBatchEnd

    def apply(self, transaction: Transaction) -> bool:
        ended, row = self.ended, _row(transaction, self.batch_id)
        written = [file for file in (ended.output, ended.error) if file is not None]
        if row is None or row.ended_at is not None:
            kept = () if row is None else (row.output_file_id, row.error_file_id)
            return all(file.id in kept for file in written)
        for file in written:
            enter(transaction, file, row.output_seconds)
        _change(transaction, self.batch_id, **_ended_values(ended), ended_at=transaction.now)
        transaction.execute(sa.delete(refused_lines).where(refused_lines.c.batch_id == self.batch_id))
        if row.webhook is not None:
            event = WebhookEvent.of_file_batch(ended.status)
            notice = WebhookNotice(row.tenant_id, row.webhook, event, file_batch_id_of(self.batch_id))
            outbox.write(transaction, [notice])
        return True


def forget(transaction: Transaction) -> None:
    """Delete the batches that ended long ago."""
    is_old = file_batches.c.ended_at <= transaction.now - _KEPT_SECONDS
    transaction.execute(sa.delete(file_batches).where(is_old))


def has_to_write(batch_id: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return a condition on a batch: it is a file's, and has still to write down what became of its lines."""
    is_it = sa.and_(file_batches.c.id == batch_id, file_batches.c.ended_at.is_(None))
    return sa.select(file_batches.c.id).where(is_it).exists()


def due(now: float, busy: Collection[str], limit: int) -> sa.Select[Any]:
    """Select batches with work to do by `now`, with their tenants; none of the tenants that are `busy`."""
    is_waiting = sa.and_(
        file_batches.c.status == FileBatchStatus.IN_PROGRESS.value,
        batches.c.finished_at.is_(None),
        sa.or_(batches.c.is_canceled, batches.c.num_stored == batches.c.num_items),
        ~batches.c.is_canceling,
        sa.or_(file_batches.c.ending.is_not(None), file_batches.c.expires_at > now),
    )
    return (
        sa.select(file_batches.c.id, file_batches.c.tenant_id)
        .join_from(file_batches, batches, batches.c.id == file_batches.c.id, isouter=True)
        .where(file_batches.c.next_at <= now, file_batches.c.ended_at.is_(None), ~is_waiting)
        .where(file_batches.c.tenant_id.not_in(sorted(busy)))
        .order_by(file_batches.c.next_at, file_batches.c.id)
        .limit(limit)
    )


def _row(transaction: Transaction, batch_id: str) -> sa.Row[Any] | None:
    return transaction.execute(sa.select(file_batches).where(file_batches.c.id == batch_id)).first()


def _change(
    transaction: Transaction, batch_id: str, *conditions: sa.ColumnElement[bool], **values: object
) -> bool:
    """Change a batch that has not ended and meets the conditions; return whether there was one."""
    is_it = sa.and_(file_batches.c.id == batch_id, file_batches.c.ended_at.is_(None), *conditions)
    return transaction.execute(sa.update(file_batches).where(is_it).values(values)).rowcount > 0


def _ended_values(ended: FileBatchEnd) -> Mapping[str, Any]:
    return {
        "status": ended.status.value,
        "output_file_id": None if ended.output is None else ended.output.id,
        "error_file_id": None if ended.error is None else ended.error.id,
        "num_lines": ended.counts.total,
        "num_completed": ended.counts.completed,
        "num_failed": ended.counts.failed,
        "tokens": None if ended.tokens is None else dump(ended.tokens),
        "errors": dump(list(ended.errors)) if ended.errors else None,
    }
