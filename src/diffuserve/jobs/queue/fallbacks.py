"""Fallbacks: a job that no worker has started in time becomes one of another model, once."""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import sqlalchemy as sa

from diffuserve.domain.codec import from_json
from diffuserve.domain.jobs.job import Fallback, JobStatus
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.queue import ready_queue
from diffuserve.jobs.queue.changes import Change, save_changes
from diffuserve.jobs.records import JobRecord, encoded

FELL_BACK: Final = "fell_back"
"""Type of the entry in the log of a job that becomes its fallback."""
_CHANGED = (
    *("model", "input", "asked", "cost_seconds", "decode_seconds", "step_tokens", "latent_bytes"),
    *("fallback", "requested_model", "deadline"),
)
_SAVE = (
    sa.update(schema.jobs)
    .where(schema.jobs.c.id == sa.bindparam("job_id"))
    .values({name: sa.bindparam(f"new_{name}") for name in _CHANGED})
)


def falls_back(record: JobRecord, now: float) -> bool:
    """Return whether a queued job becomes its fallback now, for whose work there must be time left."""
    if record.fallback is None or record.started_at is not None or record.deadline is None:
        return False
    start_by = fallen_back(record, now).start_by
    return record.deadline <= now and (start_by is None or start_by > now)


def fallen_back(record: JobRecord, now: float) -> JobRecord:
    """Return the job as its fallback, which has as much time to start as the job had."""
    assert record.fallback is not None
    assert record.deadline is not None
    values = vars(from_json(Fallback, record.fallback))
    columns = {name: encoded(name, value) for name, value in values.items()}
    deadline = now + record.deadline - record.created_at
    return replace(record, **columns, requested_model=record.model, fallback=None, deadline=deadline)


def fall_back(transaction: Transaction, records: Collection[JobRecord]) -> None:
    """Queue jobs that are ready as their fallbacks; their tenants' numbers of queued jobs stay."""
    if not records:
        return
    ready_queue.take(transaction, [record.id for record in records])
    changed = [fallen_back(record, transaction.now) for record in records]
    rows = [
        {"job_id": each.id} | {f"new_{name}": getattr(each, name) for name in _CHANGED} for each in changed
    ]
    transaction.execute(_SAVE, rows)
    save_changes(transaction, [_change(record) for record in changed])
    ready_queue.put(transaction, changed)


def _change(record: JobRecord) -> Change:
    return Change(
        record,
        FELL_BACK,
        JobStatus.QUEUED,
        {"model": record.model, "requested_model": record.requested_model},
    )
