"""Waiting jobs whose time has come: a retry is due, or a deadline has passed."""

from collections.abc import Collection
from dataclasses import replace

import sqlalchemy as sa

from diffuserve.domain.job import JobStatus
from diffuserve.jobs import queue, schema
from diffuserve.jobs.changes import Change, load_records, save_changes
from diffuserve.jobs.database import Transaction

ready, delayed = schema.ready, schema.delayed

MAX_SWEPT = 1_000
"""Jobs that one sweep takes: it bounds the length of a transaction and of a statement's list of ids."""


def sweep_due(transaction: Transaction) -> None:
    """Make delayed jobs ready that are due, and expire ready jobs that are late.

    Every claim does this first. Usually nothing is due, and it costs one statement on two small indexes.
    """
    due = sa.select(delayed.c.job_id, sa.true().label("is_due")).where(delayed.c.due_at <= transaction.now)
    late = sa.select(ready.c.job_id, sa.false().label("is_due")).where(ready.c.deadline <= transaction.now)
    parts = (sa.select(part.limit(MAX_SWEPT).subquery()) for part in (due, late))
    rows = transaction.rows(sa.union_all(*parts))
    if not rows:
        return
    _make_ready(transaction, [row.job_id for row in rows if row.is_due])
    _expire(transaction, [row.job_id for row in rows if not row.is_due])


def _make_ready(transaction: Transaction, job_ids: Collection[str]) -> None:
    if not job_ids:
        return
    transaction.execute(sa.delete(delayed).where(delayed.c.job_id.in_(list(job_ids))))
    queue.put(transaction, list(load_records(transaction, job_ids).values()))


def _expire(transaction: Transaction, job_ids: Collection[str]) -> None:
    if not job_ids:
        return
    records = list(load_records(transaction, job_ids).values())
    queue.leave(transaction, records)
    expired = [replace(record, status=JobStatus.EXPIRED, finished_at=transaction.now) for record in records]
    save_changes(transaction, [Change(record, "expired", JobStatus.QUEUED) for record in expired])
