"""Batches as clients submit, watch and cancel them."""

from collections.abc import Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.errors import BatchNotFound
from diffuserve.domain.jobs.batch import Batch, NewBatch
from diffuserve.domain.jobs.file_batch import RefusedLine
from diffuserve.domain.jobs.job import FINAL_STATUSES, Job, NewJob
from diffuserve.jobs.batches.cancellation import CancelBatch, CancelBatchItems
from diffuserve.jobs.batches.submission import (
    AddBatchItems,
    FindRoom,
    OpenBatch,
    is_batch_id,
    new_batch_id,
)
from diffuserve.jobs.database import queries, schema
from diffuserve.jobs.database.connections import Database
from diffuserve.jobs.database.writer import Writer
from diffuserve.jobs.queue.batch_items import counts_in

batches, jobs = schema.batches, schema.jobs

ITEMS_AT_ONCE = 100
"""Items that one transaction stores. A thousand hold the write lock for 60 to 100 ms, and an interactive
job needs it twice before it runs. Smaller chunks hold it for less, and cost a commit each."""


class BatchStore:
    """Batches of tenants. Every method that takes a `tenant_id` accepts `None`, which matches every tenant.

    Every method raises `ServerUnavailable` while the database is unreachable.
    """

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    async def find_room(self, new: NewBatch) -> Batch | None:
        """Raise what `open` would raise, and store nothing; return the batch of a key that was used."""
        earlier = await self._writer.run(FindRoom(new))
        return None if earlier is None else await self.get(earlier)

    async def open(self, new: NewBatch) -> Batch:
        """Store a batch without items, and reserve room for them in the queue.

        Return the earlier batch, with the items that it has, for an idempotency key that was used with the
        same body. Raise `TooLarge`, `QueueFull` or `BacklogFull` unless there is room for all items, and
        `IdempotencyMismatch`.
        """
        return await self.get(await self._writer.run(OpenBatch(new_batch_id(), new)))

    async def add(self, batch_id: str, start: int, items: Sequence[NewJob | RefusedLine]) -> int:
        """Store `items`, the first of which has number `start`; return how many the batch has then.

        If that is not `start + len(items)`, continue with the item of that number. Raise `Conflict` once
        the batch is canceled.
        """
        return await self._writer.run(AddBatchItems(batch_id, start, items))

    async def get(self, batch_id: str, tenant_id: str | None = None) -> Batch:
        """Return the batch. Raise `BatchNotFound` also for a batch of another tenant."""
        wanted = sa.select(batches).where(batches.c.id == batch_id)
        rows = await self._database.rows(wanted) if is_batch_id(batch_id) else []
        if not rows or tenant_id not in (None, rows[0].tenant_id):
            raise BatchNotFound(f"no batch {batch_id}")
        return _batch_of(rows[0])

    async def list_batches(
        self, *, tenant_id: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[Batch]:
        """Return at most `limit` batches, newest first, that are older than the batch `after`."""
        page = sa.select(batches).order_by(batches.c.id.desc()).limit(limit)
        if tenant_id is not None:
            page = page.where(batches.c.tenant_id == tenant_id)
        if after is not None:
            page = page.where(batches.c.id < after)
        return [_batch_of(row) for row in await self._database.rows(page)]

    async def cancel(self, batch_id: str, tenant_id: str | None = None) -> Batch:
        """Accept no more items. `cancel_items`, or else the reaper, cancels the stored ones."""
        await self._writer.run(CancelBatch(batch_id, tenant_id))
        return await self.get(batch_id)

    async def cancel_items(self, batch_id: str) -> None:
        """Cancel all unfinished items, in transactions that are too short to delay other writes."""
        while await self._writer.run(CancelBatchItems(batch_id)):
            pass

    async def ended_items(self, batch_id: str, after: str = "", limit: int = 200) -> list[Job]:
        """Return at most `limit` final items, in their order, that come after the job `after`."""
        ended = jobs.c.status.in_(sorted(FINAL_STATUSES))
        page = queries.JOBS.where(jobs.c.batch_id == batch_id, ended, jobs.c.id > after)
        return [
            queries.job_in(row) for row in await self._database.rows(page.order_by(jobs.c.id).limit(limit))
        ]


def _batch_of(row: sa.Row[Any]) -> Batch:
    return Batch(
        id=row.id,
        tenant_id=row.tenant_id,
        metadata=orjson.loads(row.metadata),
        num_items=row.num_items,
        num_stored=row.num_stored,
        created_at=row.created_at,
        finished_at=row.finished_at,
        is_canceled=row.is_canceled,
        counts=counts_in(row),
    )
