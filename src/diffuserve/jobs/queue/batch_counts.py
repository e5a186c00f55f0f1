"""Numbers of a batch's items by status, kept up to date in the transaction of each change."""

from collections import Counter, defaultdict
from collections.abc import Iterable

import sqlalchemy as sa

from diffuserve.domain.jobs.job import JobStatus
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction

batches, columns = schema.batches, schema.BATCH_COUNTS

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


def _row(batch_id: str, more: Counter[str]) -> dict[str, object]:
    return {"batch": batch_id, **{f"more_{name}": more[name] for name in columns.values()}}
