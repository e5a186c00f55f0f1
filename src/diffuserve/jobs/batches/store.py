"""Batches as the store keeps them."""

from collections.abc import Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.batch import Batch, NewBatch
from diffuserve.domain.errors import BatchNotFound
from diffuserve.domain.job import FINAL_STATUSES, Job, JobStatus, NewJob
from diffuserve.jobs import queries, schema
from diffuserve.jobs.batches import cancellation as batch_cancellation
from diffuserve.jobs.batches import submission as batch_submission
from diffuserve.jobs.batches.submission import Chunk, Opening, is_batch_id, new_batch_id
from diffuserve.jobs.control import Named
from diffuserve.jobs.database import Database
from diffuserve.jobs.records import job_of
from diffuserve.jobs.writer import Writer

batches, jobs = schema.batches, schema.jobs

ITEMS_AT_ONCE = 100
"""Items that one transaction takes in. A thousand hold the write lock for 60 to 100 ms, and an interactive
job needs it twice before it runs; smaller pieces cost a commit each, and hold nobody up that long."""


class BatchStore:
    """`tenant_id=None` means "whoever's". Every method raises `ServerUnavailable` as the job store's do."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    async def open(self, new: NewBatch) -> Batch:
        """An empty batch; an earlier one, as far as it was taken in, for the same key and body.

        Raises `QueueFull`, `BacklogFull` where there is no room for all of it, `IdempotencyMismatch`.
        """
        opening = Opening(new_batch_id(), new)
        return await self.get(await self._writer.run(batch_submission.open_batches, opening))

    async def add(self, batch_id: str, start: int, items: Sequence[NewJob]) -> int:
        """Store `items`, which are those from number `start` on; gives how many are stored then.

        Another number than `start + len(items)` says where to go on. Raises `Conflict` once the batch
        is canceled, `QueueFull`, `BacklogFull`.
        """
        return await self._writer.run(batch_submission.add_chunks, Chunk(batch_id, start, items))

    async def get(self, batch_id: str, tenant_id: str | None = None) -> Batch:
        """Raises `BatchNotFound`, also for another tenant's batch."""
        wanted = sa.select(batches).where(batches.c.id == batch_id)
        rows = await self._database.rows(wanted) if is_batch_id(batch_id) else []
        if not rows or tenant_id not in (None, rows[0].tenant_id):
            raise BatchNotFound(f"no batch {batch_id}")
        return (await self._with_counts(rows))[0]

    async def list_batches(
        self, *, tenant_id: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[Batch]:
        """Newest first, those older than the batch `after`."""
        page = sa.select(batches).order_by(batches.c.id.desc()).limit(limit)
        if tenant_id is not None:
            page = page.where(batches.c.tenant_id == tenant_id)
        if after is not None:
            page = page.where(batches.c.id < after)
        return await self._with_counts(await self._database.rows(page))

    async def cancel(self, batch_id: str, tenant_id: str | None = None) -> Batch:
        """Take no more items in. Those that are there are canceled by `cancel_items`, or by the reaper."""
        await self._writer.run(batch_cancellation.cancel_batches, Named(batch_id, tenant_id))
        return await self.get(batch_id)

    async def cancel_items(self, batch_id: str) -> None:
        """Cancel what has not ended, in steps that hold nobody up."""
        while await self._writer.run(batch_cancellation.cancel_items, batch_id):
            pass

    async def ended_items(self, batch_id: str, after: str = "", limit: int = 200) -> list[Job]:
        """Final items in their order, those behind the job `after`."""
        ended = jobs.c.status.in_(sorted(FINAL_STATUSES))
        page = queries.JOBS.where(jobs.c.batch_id == batch_id, ended, jobs.c.id > after)
        return [job_of(row) for row in await self._database.rows(page.order_by(jobs.c.id).limit(limit))]

    async def _with_counts(self, rows: Sequence[sa.Row[Any]]) -> list[Batch]:
        counts: dict[str, dict[JobStatus, int]] = {row.id: {} for row in rows}
        counted = (
            sa.select(jobs.c.batch_id, jobs.c.status, sa.func.count())
            .where(jobs.c.batch_id.in_(list(counts)))
            .group_by(jobs.c.batch_id, jobs.c.status)
        )
        for batch_id, status, count in map(tuple, await self._database.rows(counted)):
            counts[batch_id][JobStatus(status)] = count
        return [_batch_of(row, counts[row.id]) for row in rows]


def _batch_of(row: sa.Row[Any], counts: dict[JobStatus, int]) -> Batch:
    return Batch(
        id=row.id,
        tenant_id=row.tenant_id,
        metadata=orjson.loads(row.metadata),
        num_items=row.num_items,
        num_stored=row.num_stored,
        created_at=row.created_at,
        finished_at=row.finished_at,
        is_canceled=row.is_canceled,
        counts=counts,
    )
