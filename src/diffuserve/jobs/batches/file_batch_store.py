"""Batches from files as clients follow them, and as the process that works at them changes them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.codec import from_json
from diffuserve.domain.errors import BatchNotFound
from diffuserve.domain.jobs.batch import NewBatch
from diffuserve.domain.jobs.file_batch import (
    Ending,
    FileBatch,
    FileBatchStatus,
    FileError,
    LineCounts,
    NewFileBatch,
    RefusedLine,
    TokenCounts,
    counted,
    file_batch_id_of,
)
from diffuserve.domain.jobs.job import Job
from diffuserve.domain.jobs.webhook import Webhook
from diffuserve.jobs.batches.file_batches import (
    CheckFileBatch,
    CreateFileBatch,
    EndFileBatch,
    FileBatchEnd,
    FinalizeFileBatch,
    PostponeFileBatch,
    StartFileBatch,
    StopFileBatch,
    TakeFileBatch,
    due,
)
from diffuserve.jobs.batches.submission import item_id
from diffuserve.jobs.database import queries, schema
from diffuserve.jobs.database.connections import Database
from diffuserve.jobs.database.writer import Writer
from diffuserve.jobs.queue.idempotency import Stamp

batches, file_batches, refused_lines = schema.batches, schema.file_batches, schema.refused_lines

_CANCELLED: Ending = "cancelled"
_EXPIRED: Ending = "expired"
_OF_BATCH = ("num_items", "num_stored", "finished_at", "is_canceled", *schema.BATCH_COUNTS.values())
_SHOWN = sa.select(file_batches, *(batches.c[name].label(f"of_{name}") for name in _OF_BATCH)).join_from(
    file_batches, batches, batches.c.id == file_batches.c.id, isouter=True
)


class FileBatchStore:
    """Batches from files of tenants, by the ids of the server's own batches behind them.

    Every method that takes a `tenant_id` accepts `None`, which matches every tenant. Every method raises
    `ServerUnavailable` while the database is unreachable.
    """

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    async def create(self, new: NewFileBatch, stamp: Stamp | None = None) -> FileBatch:
        """Enter a batch; return the earlier one for an idempotency key that was used with the same body.

        Raise `FileNotKnown`, `QueueFull` and `IdempotencyMismatch`.
        """
        return await self.get(await self._writer.run(CreateFileBatch(new, stamp)))

    async def get(self, batch_id: str, tenant_id: str | None = None) -> FileBatch:
        """Return the batch. Raise `BatchNotFound` also for a batch of another tenant."""
        rows = await self._database.rows(_SHOWN.where(file_batches.c.id == batch_id))
        if not rows or tenant_id not in (None, rows[0].tenant_id):
            raise BatchNotFound(f"no batch {file_batch_id_of(batch_id)}")
        return _file_batch_of(rows[0])

    async def list_batches(
        self, *, tenant_id: str | None = None, after: str | None = None, limit: int = 20
    ) -> list[FileBatch]:
        """Return at most `limit` batches, newest first, that are older than the batch `after`."""
        page = _SHOWN.order_by(file_batches.c.id.desc()).limit(limit)
        if tenant_id is not None:
            page = page.where(file_batches.c.tenant_id == tenant_id)
        if after is not None:
            page = page.where(file_batches.c.id < after)
        return [_file_batch_of(row) for row in await self._database.rows(page)]

    async def cancel(self, batch_id: str, tenant_id: str | None = None) -> FileBatch:
        """Let the batch end early. Raise `BatchNotFound`, and `Conflict` for one that has ended otherwise."""
        await self._writer.run(StopFileBatch(batch_id, _CANCELLED, tenant_id))
        return await self.get(batch_id)

    async def find_due(self, busy: Collection[str], limit: int) -> dict[str, str]:
        """Return batches with work to do, by their tenants: the first of each tenant that is not `busy`."""
        found: dict[str, str] = {}
        for row in await self._database.rows(due(await self._database.now(), busy, limit)):
            found.setdefault(row.tenant_id, row.id)
        return found

    async def take(self, batch_id: str, seconds: float) -> bool:
        """Keep a batch from other processes for `seconds`; return whether none has it already."""
        return await self._writer.run(TakeFileBatch(batch_id, seconds))

    async def postpone(self, batch_id: str, seconds: float) -> None:
        """Let a batch that was taken be due again after `seconds`."""
        await self._writer.run(PostponeFileBatch(batch_id, seconds))

    async def note_checked(
        self, batch_id: str, num_lines: int, cost_seconds: float, model: str | None
    ) -> None:
        """Note what the lines of a batch are, once all are checked."""
        await self._writer.run(CheckFileBatch(batch_id, num_lines, cost_seconds, model))

    async def start(self, batch_id: str, new: NewBatch) -> None:
        """Begin to submit the lines. Raise what `BatchStore.open` raises for want of room."""
        await self._writer.run(StartFileBatch(batch_id, new))

    async def expire(self, batch_id: str) -> None:
        """Let a batch end because its time is over."""
        await self._writer.run(StopFileBatch(batch_id, _EXPIRED))

    async def finalize(self, batch_id: str) -> None:
        """Begin to write the files of a batch that is over."""
        await self._writer.run(FinalizeFileBatch(batch_id))

    async def end(self, batch_id: str, ended: FileBatchEnd) -> bool:
        """End a batch with its files; return false if another process has ended it with others."""
        return await self._writer.run(EndFileBatch(batch_id, ended))

    async def answers(self, batch_id: str, start: int, end: int) -> Mapping[int, Job | RefusedLine]:
        """Return what became of the lines from number `start` up to `end`, as far as they were submitted."""
        ids = {item_id(batch_id, number): number for number in range(start, end)}
        jobs = await queries.rows_of(self._database, queries.JOBS_BY_ID, ids)
        found: dict[int, Job | RefusedLine] = {ids[row.id]: queries.job_in(row) for row in jobs}
        is_here = sa.and_(refused_lines.c.number >= start, refused_lines.c.number < end)
        refused = sa.select(refused_lines).where(refused_lines.c.batch_id == batch_id, is_here)
        for row in await self._database.rows(refused):
            found[row.number] = RefusedLine(row.status, orjson.loads(row.body))
        return found


def _file_batch_of(row: sa.Row[Any]) -> FileBatch:
    values = {name: getattr(row, name) for name in _PLAIN}
    return FileBatch(
        **values,
        status=FileBatchStatus(row.status),
        ending=row.ending or (_CANCELLED if row.of_is_canceled else None),  # by whichever of its two ids
        metadata=None if row.metadata is None else orjson.loads(row.metadata),
        webhook=None if row.webhook is None else from_json(Webhook, row.webhook),
        window_seconds=row.expires_at - row.created_at,
        counts=_counts_of(row),
        errors=() if row.errors is None else _errors_in(row.errors),
        tokens=None if row.tokens is None else from_json(TokenCounts, row.tokens),
        num_stored=row.of_num_stored or 0,
        is_over=row.of_finished_at is not None,
    )


_PLAIN = (
    *("id", "tenant_id", "endpoint", "input_file_id", "completion_window", "base_url", "model"),
    *("output_file_id", "error_file_id", "cost_seconds", "output_seconds", "created_at", "expires_at"),
    *("in_progress_at", "finalizing_at", "cancelling_at", "ended_at"),
)


def _errors_in(text: str) -> Sequence[FileError]:
    return [FileError(**values) for values in orjson.loads(text)]


def _counts_of(row: sa.Row[Any]) -> LineCounts:
    """Return the counts of a batch: those at its end, or of its jobs until then."""
    if row.ended_at is not None or row.of_num_items is None:
        return LineCounts(total=row.num_lines, completed=row.num_completed, failed=row.num_failed)
    by_status = {status: getattr(row, f"of_{name}") for status, name in schema.BATCH_COUNTS.items()}
    return counted(row.num_refused, row.num_lines, by_status)
