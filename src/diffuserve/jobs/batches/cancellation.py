"""Canceling batches: marked in one transaction, their items canceled some at a time in the next ones."""

from dataclasses import dataclass

import sqlalchemy as sa

from diffuserve.domain.errors import BatchNotFound, DiffuserveError
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.queue import batch_items
from diffuserve.jobs.queue.control import CancelJob
from diffuserve.jobs.webhooks import outbox

batches, jobs = schema.batches, schema.jobs

_MAX_ITEMS = 100  # items that are canceled in one transaction: a short one does not hold up other writes
_CHUNKS_PER_ROUND = 4
_CANCELABLE = (JobStatus.QUEUED, JobStatus.RUNNING)
_MARKED = {"is_canceled": True, "is_canceling": True, "reserved_jobs": 0, "reserved_seconds": 0.0}


@dataclass(frozen=True)
class CancelBatch(SingleCommand[None]):
    """Accept no more items into a batch, and free its reserved room; `CancelBatchItems` cancels stored ones.

    `tenant_id` is the batch's tenant, or `None` for any. The outcome is `BatchNotFound` for another
    tenant's. A batch that has ended stays as it is.
    """

    batch_id: str
    tenant_id: str | None = None

    def apply(self, transaction: Transaction) -> DiffuserveError | None:
        is_named = batches.c.id == self.batch_id
        if self.tenant_id is not None:
            is_named = sa.and_(is_named, batches.c.tenant_id == self.tenant_id)
        rows = transaction.rows(sa.select(batches.c.finished_at).where(is_named))
        if not rows:
            return BatchNotFound(f"no batch {self.batch_id}")
        if rows[0].finished_at is None:
            transaction.execute(sa.update(batches).where(is_named).values(_MARKED))
        return None


@dataclass(frozen=True)
class CancelBatchItems(SingleCommand[bool]):
    """Cancel some items of a batch; the outcome is whether there may be more."""

    batch_id: str

    def apply(self, transaction: Transaction) -> bool:
        return _cancel_items(transaction, self.batch_id)


def cancel_abandoned(transaction: Transaction) -> None:
    """Cancel the batches whose submission was interrupted and not continued for long."""
    until = transaction.now - transaction.config.batch_idle_seconds
    is_of_file = sa.exists().where(schema.file_batches.c.id == batches.c.id)  # which continue by themselves
    is_abandoned = sa.and_(sa.text("reserved_jobs > 0"), batches.c.stored_at <= until, ~is_of_file)
    transaction.execute(sa.update(batches).where(is_abandoned).values(_MARKED))


def resume(transaction: Transaction) -> None:
    """Continue a cancellation, some chunks each round, in case the process that began it was killed."""
    for row in transaction.rows(sa.select(batches.c.id).where(batches.c.is_canceling).limit(1)):
        for _ in range(_CHUNKS_PER_ROUND):
            if not _cancel_items(transaction, row.id):
                break


def _cancel_items(transaction: Transaction, batch_id: str) -> bool:
    live = sa.select(jobs.c.id).where(jobs.c.batch_id == batch_id, jobs.c.status.in_(_CANCELABLE))
    items = [CancelJob(row.id) for row in transaction.rows(live.limit(_MAX_ITEMS))]
    CancelJob.apply_many(transaction, items)
    if len(items) == _MAX_ITEMS:
        return True
    transaction.execute(sa.update(batches).where(batches.c.id == batch_id).values(is_canceling=False))
    # A batch that had no live item left is not ended by the end of an item.
    outbox.write(transaction, batch_items.finish(transaction, [batch_id]))
    return False
