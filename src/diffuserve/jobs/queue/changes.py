"""Changes of jobs: rows are read, changed, and written back with an entry in the job's log."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.jobs.job import JobEvent, JobStatus
from diffuserve.domain.jobs.webhook import WebhookEvent
from diffuserve.domain.workers.worker import ReleaseCause
from diffuserve.events.base import job_topic
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import IDS, Transaction
from diffuserve.jobs.database.tally import AttemptKey
from diffuserve.jobs.queue import batch_items
from diffuserve.jobs.records import CHANGING_COLUMNS, JobRecord, dump, ended_of, record_of
from diffuserve.jobs.webhooks import outbox
from diffuserve.jobs.webhooks.outbox import WebhookNotice

jobs = schema.jobs

_BY_ID = sa.select(jobs).where(jobs.c.id.in_(IDS))
_INSERT_EVENT = sa.insert(schema.job_events)
_SAVE = (
    sa.update(jobs)
    .where(jobs.c.id == sa.bindparam("job_id"))
    .values({name: sa.bindparam(f"new_{name}") for name in CHANGING_COLUMNS})
)


@dataclass(frozen=True)
class Change:
    """A job's new state and its status `before`, and the type and data of its entry in the job's log."""

    record: JobRecord
    event: str
    before: JobStatus
    data: Mapping[str, Any] = field(default_factory=dict)


def load_records(transaction: Transaction, job_ids: Collection[str]) -> dict[str, JobRecord]:
    """Return those of the jobs that exist, by id."""
    if not job_ids:
        return {}
    rows = transaction.rows(_BY_ID, {"ids": list(job_ids)})
    return {record.id: record for record in map(record_of, rows)}


def save_changes(transaction: Transaction, changes: Iterable[Change]) -> None:
    """Write jobs back, append to their logs, and notify watchers, webhooks and batches."""
    rows, events, ended, moves = [], [], [], []
    for change in changes:
        record, num_events = change.record, change.record.num_events + 1
        row = {f"new_{name}": getattr(record, name) for name in CHANGING_COLUMNS}
        row |= {"new_num_events": num_events, "new_version": record.version + 1}
        rows.append({"job_id": record.id, **row, "new_forget_at": _forget_at(record, transaction.config)})
        events.append(event_row(record.id, num_events, change.event, transaction.now, change.data))
        moves.append((record.batch_id, change.before, record.status))
        transaction.publish(job_topic(record.id), {"type": "changed", "status": record.status.value})
        if record.status.is_final and change.event == record.status:
            ended.append(change)
        elif (cause := _requeue_cause(change)) is not None:
            transaction.requeue_causes.append(cause)
    if rows:
        transaction.execute(_SAVE, rows)
        log(transaction, events)
    batch_items.move(transaction, moves)
    _notify_of_ends(transaction, ended)


def _forget_at(record: JobRecord, config: StoreConfig) -> float | None:
    """Return when a job is deleted that names its own time, or is not to be stored; `None` until it ends."""
    if record.finished_at is None or not record.status.is_final:
        return None
    seconds = record.retention_seconds
    if record.forget_delivered:
        seconds = min(config.undelivered_seconds, seconds or config.undelivered_seconds)
    return None if seconds is None else record.finished_at + seconds


def _kept_by(record: JobRecord) -> AttemptKey:
    return AttemptKey(record.tenant_id, record.model, "", record.status.value)


def _requeue_cause(change: Change) -> str | None:
    """Return why a started job is queued again; `None` for other changes, also for a handover."""
    if change.event == "requeued":
        return str(change.data["cause"])
    return change.event if change.event in (ReleaseCause.PREEMPTED, ReleaseCause.INTERRUPTED) else None


def log(transaction: Transaction, events: Sequence[dict[str, Any]]) -> None:
    """Append rows of `event_row` to the logs of their jobs."""
    transaction.execute(_INSERT_EVENT, list(events))


def event_row(
    job_id: str, seq: int, event: str, now: float, data: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the row of entry `seq` in a job's log."""
    return {
        "job_id": job_id,
        "seq": seq,
        "type": event,
        "data": dump(data or {}),
        "created_at": now,
    }


def event_of(row: sa.Row[Any]) -> JobEvent:
    """Return the log entry in a row of `job_events`."""
    return JobEvent(row.job_id, row.seq, row.type, orjson.loads(row.data), row.created_at)


def _notify_of_ends(transaction: Transaction, changes: Sequence[Change]) -> None:
    """Queue the webhooks of jobs that became final, and end the batches whose last items they were.

    The jobs must be saved already: whether a batch is over is read from the table.
    """
    transaction.ended += [ended_of(change.record, change.before, transaction.now) for change in changes]
    ended = [change.record for change in changes]
    for change in changes:
        if change.before is JobStatus.QUEUED and change.record.kept_seconds:
            transaction.tally.add_kept(_kept_by(change.record), change.record.kept_seconds)
    notices = [
        WebhookNotice(record.tenant_id, record.webhook, event, record.id)
        for record in ended
        if record.webhook is not None
        for event in WebhookEvent.of_job(record.status)
    ]
    batch_ids = {record.batch_id for record in ended if record.batch_id is not None}
    outbox.write(transaction, notices + batch_items.finish(transaction, batch_ids))
