"""A batch's items: their numbers by status, kept up to date with each change, and the end of the last one."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

import sqlalchemy as sa

from diffuserve.domain.jobs.job import FINAL_STATUSES, JobStatus
from diffuserve.domain.jobs.webhook import WebhookEvent
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.webhooks.outbox import WebhookNotice

jobs, batches, columns = schema.jobs, schema.batches, schema.BATCH_COUNTS

_OPEN_STATUSES = sorted(frozenset(JobStatus) - FINAL_STATUSES)

Move = tuple[str | None, JobStatus | None, JobStatus]
"""A job's batch, its status before and its status after; a job that is new has none before."""

_ADD = (
    sa.update(batches)
    .where(batches.c.id == sa.bindparam("batch"))
    .values({name: batches.c[name] + sa.bindparam(f"more_{name}") for name in columns.values()})
)


def move(transaction: Transaction, moves: Iterable[Move]) -> None:
    """Count jobs under their new status and no longer under the old one; jobs of no batch are left out."""
    changes: dict[str, Counter[str]] = defaultdict(Counter)
    for batch_id, before, after in moves:
        if batch_id is not None:
            changes[batch_id][columns[after]] += 1
            if before is not None:
                changes[batch_id][columns[before]] -= 1
    if changes:
        transaction.execute(_ADD, [_row(batch_id, more) for batch_id, more in changes.items()])


def counts_in(row: sa.Row[tuple[object, ...]]) -> dict[JobStatus, int]:
    """Return the counts in a row of `batches`, without those that are 0."""
    counts = {status: getattr(row, name) for status, name in columns.items()}
    return {status: count for status, count in counts.items() if count}


def finish(transaction: Transaction, batch_ids: Collection[str]) -> list[WebhookNotice]:
    """End those of the batches without unfinished items; return the webhook messages to write for them.

    A batch that was canceled while it was submitted may end with fewer items than it announced.
    """
    if not batch_ids:
        return []
    open_item = sa.select(jobs.c.id).where(jobs.c.batch_id == batches.c.id, jobs.c.status.in_(_OPEN_STATUSES))
    is_whole = sa.or_(batches.c.num_stored == batches.c.num_items, batches.c.is_canceled)
    is_over = sa.and_(
        batches.c.id.in_(sorted(batch_ids)), batches.c.finished_at.is_(None), is_whole, ~open_item.exists()
    )
    statement = sa.update(batches).where(is_over).values(finished_at=transaction.now)
    rows = transaction.rows(statement.returning(batches.c.id, batches.c.tenant_id, batches.c.webhook))
    return [
        WebhookNotice(row.tenant_id, row.webhook, WebhookEvent.BATCH_COMPLETED, row.id)
        for row in rows
        if row.webhook is not None
    ]


def reopen(transaction: Transaction, batch_ids: Collection[str]) -> None:
    """Mark batches as running again, because one of their items was requeued."""
    if batch_ids:
        requeued = sa.update(batches).where(batches.c.id.in_(sorted(batch_ids)))
        transaction.execute(requeued.values(finished_at=None))


def _row(batch_id: str, more: Counter[str]) -> dict[str, object]:
    return {"batch": batch_id, **{f"more_{name}": more[name] for name in columns.values()}}
