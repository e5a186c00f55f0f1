"""Rows of `jobs` as values, and back."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.job import (
    Artifact,
    Band,
    Job,
    JobError,
    JobEvent,
    JobResult,
    JobStatus,
    Phase,
    Progress,
)
from diffuserve.domain.prompt import PromptRecord
from diffuserve.domain.webhook import WebhookEvent
from diffuserve.events.base import job_topic
from diffuserve.jobs import schema
from diffuserve.jobs.batches import completion as batch_completion
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.webhooks import outbox
from diffuserve.jobs.webhooks.outbox import WebhookNotice

jobs = schema.jobs


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """What a decision about a job needs, and may change; `seq` is its place in its tenant's queue."""

    id: str
    tenant_id: str
    model: str
    band: Band
    seq: int
    cost_seconds: float
    step_tokens: int
    timeout: float | None
    deadline: float | None
    created_at: float
    webhook: str | None
    batch_id: str | None

    status: JobStatus
    attempt: int
    lease_token: int
    num_transient: int
    num_worker_lost: int
    num_events: int
    version: int
    worker_id: str | None
    started_at: float | None
    finished_at: float | None
    actual_seconds: float | None
    result: str | None
    error: str | None
    is_erased: bool
    is_suspect: bool = False

    @property
    def lane(self) -> str:
        return lane_key(self.band, self.tenant_id, self.model)


@dataclass(frozen=True)
class Change:
    """A job's new state and the entry in its log that tells of it."""

    record: JobRecord
    event: str
    data: Mapping[str, Any]


_COLUMNS = [jobs.c[name] for name in JobRecord.__dataclass_fields__]
_MUTABLE = list(JobRecord.__dataclass_fields__)[12:]
_SAVE = (
    sa.update(jobs)
    .where(jobs.c.id == sa.bindparam("job_id"))
    .values({name: sa.bindparam(f"new_{name}") for name in _MUTABLE})
)


def lane_key(band: Band, tenant_id: str, model: str) -> str:
    """Jobs that differ in none of these are served in their order."""
    return f"{band.rank}|{tenant_id}|{model}"


def load_records(transaction: Transaction, job_ids: Collection[str]) -> dict[str, JobRecord]:
    """Those that exist, by id."""
    if not job_ids:
        return {}
    rows = transaction.rows(sa.select(*_COLUMNS).where(jobs.c.id.in_(list(job_ids))))
    return {row.id: record_of(row) for row in rows}


def record_of(row: sa.Row[Any]) -> JobRecord:
    """From a row of `jobs`, or of as many of its columns as a record has."""
    values = {name: getattr(row, name) for name in JobRecord.__dataclass_fields__}
    values["band"], values["status"] = Band(values["band"]), JobStatus(values["status"])
    return JobRecord(**values)


def save_changes(transaction: Transaction, changes: Iterable[Change]) -> None:
    """Write jobs back, append to their logs, and tell whoever watches them or asked to be told."""
    rows, events, ended = [], [], []
    for change in changes:
        record = change.record
        saved = replace(record, num_events=record.num_events + 1, version=record.version + 1)
        rows.append({"job_id": record.id} | {f"new_{name}": getattr(saved, name) for name in _MUTABLE})
        events.append(event_row(saved, change.event, change.data, transaction.now))
        transaction.notices.append((job_topic(record.id), {"type": "changed"}))
        if record.status.is_final and change.event == record.status:
            ended.append(record)
    if rows:
        transaction.execute(_SAVE, rows)
        transaction.execute(sa.insert(schema.job_events), events)
    _tell_of(transaction, ended)


def _tell_of(transaction: Transaction, ended: Sequence[JobRecord]) -> None:
    """Jobs that have become final, after they were written."""
    transaction.ended += [(one.status, one.model) for one in ended]
    told = [
        WebhookNotice(one.tenant_id, one.webhook, WebhookEvent.of_job(one.status), one.id)
        for one in ended
        if one.webhook is not None
    ]
    batch_ids = {one.batch_id for one in ended if one.batch_id is not None}
    outbox.write(transaction, told + batch_completion.finish(transaction, batch_ids))


def event_row(record: JobRecord, event: str, data: Mapping[str, Any], now: float) -> dict[str, Any]:
    return {
        "job_id": record.id,
        "seq": record.num_events,
        "type": event,
        "data": dump(data),
        "created_at": now,
    }


def event_of(row: sa.Row[Any]) -> JobEvent:
    return JobEvent(row.job_id, row.seq, row.type, orjson.loads(row.data), row.created_at)


def job_of(row: sa.Row[Any]) -> Job:
    """From a row of `jobs` joined with its lease's `phase`, `step` and `total`."""
    status = JobStatus(row.status)
    return Job(
        id=row.id,
        tenant_id=row.tenant_id,
        kind=row.kind,
        model=row.model,
        status=status,
        band=Band(row.band),
        input=orjson.loads(row.input),
        metadata=orjson.loads(row.metadata),
        cost_seconds=row.cost_seconds,
        step_tokens=row.step_tokens,
        attempt=row.attempt,
        lease_token=row.lease_token,
        version=row.version,
        created_at=row.created_at,
        num_previews=row.num_previews,
        output_format=row.output_format,
        batch_id=row.batch_id,
        custom_id=row.custom_id,
        prompt=PromptRecord.from_dict(orjson.loads(row.prompt)) if row.prompt else None,
        timeout=row.timeout,
        deadline=row.deadline,
        started_at=row.started_at,
        finished_at=row.finished_at,
        worker_id=row.worker_id,
        phase=Phase(row.phase) if row.phase else None,
        progress=Progress(row.step, row.total) if row.total else None,
        actual_seconds=row.actual_seconds,
        result=_result(row.result) if row.result else None,
        error=JobError(**orjson.loads(row.error)) if row.error else None,
    )


def dump(value: object) -> str:
    return orjson.dumps(value).decode()


def dump_result(result: JobResult) -> str:
    return dump(asdict(result))


def _result(text: str) -> JobResult:
    values = orjson.loads(text)
    artifacts: Sequence[Mapping[str, Any]] = values.pop("artifacts")
    return JobResult(
        artifacts=tuple(Artifact(**artifact) for artifact in artifacts),
        warnings=tuple(values.pop("warnings")),
        **values,
    )
