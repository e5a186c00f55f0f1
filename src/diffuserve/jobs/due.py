"""What time alone does to waiting jobs: a retry comes due, a deadline passes."""

from collections.abc import Collection
from dataclasses import replace

import sqlalchemy as sa

from diffuserve.domain.job import JobStatus
from diffuserve.jobs import queue, schema
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.records import Change, load_records, save_changes

ready, delayed = schema.ready, schema.delayed

AT_ONCE = 1_000
"""Jobs that one look takes: a transaction stays short, and a statement's list of ids bounded."""


def sweep_due(transaction: Transaction) -> None:
    """Cheap where nothing is due: one look into two small indexes."""
    due = sa.select(delayed.c.job_id, sa.true().label("is_due")).where(delayed.c.due_at <= transaction.now)
    late = sa.select(ready.c.job_id, sa.false().label("is_due")).where(ready.c.deadline <= transaction.now)
    parts = (sa.select(part.limit(AT_ONCE).subquery()) for part in (due, late))
    found = transaction.rows(sa.union_all(*parts))
    if not found:
        return
    _make_ready(transaction, [row.job_id for row in found if row.is_due])
    _expire(transaction, [row.job_id for row in found if not row.is_due])


def _make_ready(transaction: Transaction, job_ids: Collection[str]) -> None:
    if not job_ids:
        return
    transaction.execute(sa.delete(delayed).where(delayed.c.job_id.in_(list(job_ids))))
    queue.put(transaction, list(load_records(transaction, job_ids).values()))


def _expire(transaction: Transaction, job_ids: Collection[str]) -> None:
    if not job_ids:
        return
    records = load_records(transaction, job_ids).values()
    queue.take(transaction, job_ids)
    ledger = queue.Ledger()
    for record in records:
        ledger.count_queued(record.tenant_id, -1)
    ledger.save(transaction)
    expired = [replace(one, status=JobStatus.EXPIRED, finished_at=transaction.now) for one in records]
    save_changes(transaction, [Change(one, "expired", {}) for one in expired])
