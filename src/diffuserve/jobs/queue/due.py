"""Waiting jobs whose time has come: a retry is due, a deadline comes close, or it has passed."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.jobs.job import JobError, JobStatus
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.queue import ready_queue
from diffuserve.jobs.queue.changes import Change, load_records, save_changes
from diffuserve.jobs.queue.fallbacks import fall_back, falls_back
from diffuserve.jobs.records import JobRecord, dump

ready, delayed = schema.ready, schema.delayed

_DUE, _LATE, _RISING = "due", "late", "rising"
_NOT_STARTED = JobError(
    "start_timeout",
    "no worker started the job in time; give it a longer start_timeout_seconds, or a fallback_model",
)
_TOO_LATE = JobError("deadline_missed", "the job could no longer be done by its deadline; allow it more time")
MAX_SWEPT = 1_000
"""Jobs that one sweep takes: it bounds the length of a transaction and of a statement's list of ids."""


def sweep_due(transaction: Transaction) -> None:
    """Make delayed jobs ready that are due, expire late ones, and raise those close to their deadlines.

    Every claim does this first. Usually nothing is due, and it costs one statement on three small indexes.
    """
    rows = transaction.rows(_CHANGING, {"now": transaction.now})
    if not rows:
        return
    _make_ready(transaction, [row.job_id for row in rows if row.kind == _DUE])
    _expire(transaction, [row.job_id for row in rows if row.kind == _LATE])
    _raise(transaction, [row.job_id for row in rows if row.kind == _RISING])


def _select_changing() -> sa.CompoundSelect[Any]:
    """Build the statement that finds the jobs whose time has come."""
    now: sa.BindParameter[float] = sa.bindparam("now")
    due = _kind(_DUE, delayed.c.job_id).where(delayed.c.due_at <= now)
    late = _kind(_LATE, ready.c.job_id).where(ready.c.deadline <= now)
    is_in_time = sa.or_(ready.c.deadline.is_(None), ready.c.deadline > now)
    rising = _kind(_RISING, ready.c.job_id).where(ready.c.rises_at <= now, is_in_time)
    return sa.union_all(*(sa.select(part.limit(MAX_SWEPT).subquery()) for part in (due, late, rising)))


def _kind(kind: str, job_id: sa.Column[str]) -> sa.Select[str, str]:
    return sa.select(job_id, sa.literal(kind).label("kind"))


_CHANGING = _select_changing()


def _make_ready(transaction: Transaction, job_ids: Collection[str]) -> None:
    if not job_ids:
        return
    transaction.execute(sa.delete(delayed).where(delayed.c.job_id.in_(list(job_ids))))
    ready_queue.put(transaction, list(load_records(transaction, job_ids).values()))


def _expire(transaction: Transaction, job_ids: Collection[str]) -> None:
    if not job_ids:
        return
    records = list(load_records(transaction, job_ids).values())
    fall_back(transaction, [record for record in records if falls_back(record, transaction.now)])
    late = [record for record in records if not falls_back(record, transaction.now)]
    ready_queue.leave(transaction, late)
    save_changes(transaction, [_expiry(record, transaction.now) for record in late])


def _expiry(record: JobRecord, now: float) -> Change:
    """Return the end of a job, which says whether its deadline or its limit in the queue has passed."""
    has_waited = record.deadline is not None and record.start_by == record.deadline
    error = _NOT_STARTED if has_waited else _TOO_LATE
    expired = replace(record, status=JobStatus.EXPIRED, finished_at=now, error=dump(error))
    return Change(expired, "expired", JobStatus.QUEUED, {} if has_waited else {"cause": "deadline"})


def _raise(transaction: Transaction, job_ids: Collection[str]) -> None:
    """Move jobs to the places that now follow from their deadlines."""
    if not job_ids:
        return
    records = list(load_records(transaction, job_ids).values())
    ready_queue.take(transaction, job_ids)
    ready_queue.put(transaction, records)
