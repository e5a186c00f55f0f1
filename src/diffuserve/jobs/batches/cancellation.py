"""Canceling batches: at once in word, some hundred items a transaction in deed."""

from collections.abc import Sequence

import sqlalchemy as sa

from diffuserve.domain.errors import BatchNotFound, DiffuserveError
from diffuserve.domain.job import JobStatus
from diffuserve.jobs import control, schema
from diffuserve.jobs.batches import completion as batch_completion
from diffuserve.jobs.control import Named
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.webhooks import outbox

batches, jobs = schema.batches, schema.jobs

_AT_ONCE = 100
_PIECES_A_ROUND = 4
_TO_CANCEL = (JobStatus.QUEUED, JobStatus.RUNNING)


def cancel_batches(transaction: Transaction, named: Sequence[Named]) -> Sequence[str | DiffuserveError]:
    """No more items are taken in; those that are there are canceled by `cancel_items`."""
    return [_mark(transaction, one) for one in named]


def cancel_items(transaction: Transaction, batch_ids: Sequence[str]) -> Sequence[bool | DiffuserveError]:
    """Whether there may be more to cancel."""
    return [_cancel_some(transaction, one) for one in batch_ids]


def go_on(transaction: Transaction) -> None:
    """What a process that was killed has left to do."""
    for row in transaction.rows(sa.select(batches.c.id).where(batches.c.is_canceling).limit(1)):
        for _ in range(_PIECES_A_ROUND):
            if not _cancel_some(transaction, row.id):
                break


def _mark(transaction: Transaction, named: Named) -> str | DiffuserveError:
    mine = batches.c.id == named.id
    if named.tenant_id is not None:
        mine = sa.and_(mine, batches.c.tenant_id == named.tenant_id)
    rows = transaction.rows(sa.select(batches.c.finished_at).where(mine))
    if not rows:
        return BatchNotFound(f"no batch {named.id}")
    if rows[0].finished_at is None:
        transaction.execute(sa.update(batches).where(mine).values(is_canceled=True, is_canceling=True))
    return named.id


def _cancel_some(transaction: Transaction, batch_id: str) -> bool:
    live = sa.select(jobs.c.id).where(jobs.c.batch_id == batch_id, jobs.c.status.in_(_TO_CANCEL))
    found = [Named(row.id, None) for row in transaction.rows(live.limit(_AT_ONCE))]
    control.cancel(transaction, found)
    if len(found) == _AT_ONCE:
        return True
    transaction.execute(sa.update(batches).where(batches.c.id == batch_id).values(is_canceling=False))
    outbox.write(transaction, batch_completion.finish(transaction, [batch_id]))
    return False
