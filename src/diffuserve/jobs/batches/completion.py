"""When the last item of a batch is final, so is the batch."""

from collections.abc import Collection

import sqlalchemy as sa

from diffuserve.domain.job import FINAL_STATUSES, JobStatus
from diffuserve.domain.webhook import WebhookEvent
from diffuserve.jobs import schema
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.webhooks.outbox import WebhookNotice

jobs, batches = schema.jobs, schema.batches

OPEN_STATUSES = sorted(frozenset(JobStatus) - FINAL_STATUSES)


def finish(transaction: Transaction, batch_ids: Collection[str]) -> list[WebhookNotice]:
    """Those of the batches that ended with what this transaction wrote; gives what is to be told of them.

    A batch that was canceled while it was taken in has fewer items than were sent.
    """
    if not batch_ids:
        return []
    open_item = sa.select(jobs.c.id).where(jobs.c.batch_id == batches.c.id, jobs.c.status.in_(OPEN_STATUSES))
    is_whole = sa.or_(batches.c.num_stored == batches.c.num_items, batches.c.is_canceled)
    ended = sa.and_(
        batches.c.id.in_(sorted(batch_ids)), batches.c.finished_at.is_(None), is_whole, ~open_item.exists()
    )
    statement = sa.update(batches).where(ended).values(finished_at=transaction.now)
    rows = transaction.rows(statement.returning(batches.c.id, batches.c.tenant_id, batches.c.webhook))
    return [
        WebhookNotice(row.tenant_id, row.webhook, WebhookEvent.BATCH_COMPLETED, row.id)
        for row in rows
        if row.webhook is not None
    ]


def reopen(transaction: Transaction, batch_ids: Collection[str]) -> None:
    """Batches of which an item is queued again."""
    if batch_ids:
        again = sa.update(batches).where(batches.c.id.in_(sorted(batch_ids)))
        transaction.execute(again.values(finished_at=None))
