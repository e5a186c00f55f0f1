"""The end of a batch: it is over when its last item is final."""

from collections.abc import Collection

import sqlalchemy as sa

from diffuserve.domain.jobs.job import FINAL_STATUSES, JobStatus
from diffuserve.domain.jobs.webhook import WebhookEvent
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.webhooks.outbox import WebhookNotice

jobs, batches = schema.jobs, schema.batches

_OPEN_STATUSES = sorted(frozenset(JobStatus) - FINAL_STATUSES)


def finish(transaction: Transaction, batch_ids: Collection[str]) -> list[WebhookNotice]:
    """End those of the batches that have no open item left; return the webhook notices to write for them.

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
    """Mark batches as running again, because an item of theirs was requeued."""
    if batch_ids:
        requeued = sa.update(batches).where(batches.c.id.in_(sorted(batch_ids)))
        transaction.execute(requeued.values(finished_at=None))
