"""The row of a job: its columns, declared once, and the values that are made from it.

The table, the inserts, `Job` and `Lease` all derive from `JobRecord` by the names of its fields.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import orjson

from diffuserve.domain.codec import from_json
from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.domain.jobs.job import (
    Band,
    EndedJob,
    Fallback,
    Job,
    JobError,
    JobResult,
    JobStatus,
    NewJob,
    Phase,
    Progress,
)
from diffuserve.domain.jobs.prompt import PromptRecord
from diffuserve.domain.jobs.webhook import Webhook
from diffuserve.domain.requests.adapter_use import stored_uses
from diffuserve.domain.workers.worker import Lease, LeaseEnd, StoredLatents


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A row of the table `jobs`: every field is a column of the same name.

    `seq` is the job's place in its tenant's queue. `num_transient` and `num_worker_lost` count the
    attempts that failed by cause, `num_preempted` those that made room for more urgent jobs, and `num_events`
    the entries of the job's log. A job that has not started by `deadline` expires, and one that cannot end by
    `finish_by` as well, unless it is `best_effort`. A job with
    `latents` is in its decode phase; `num_latents_lost` counts how often they turned out to be unusable. Its
    newest `checkpoint` is deleted once it has ended; `kept_seconds` are the device-seconds in it that are
    charged. `traceparent` is the place of its submission in a trace. A job that has ended is deleted at
    `forget_at`, if it has that.
    The columns of `JSON_COLUMNS` hold JSON as text, as the database stores it.
    """

    id: str
    tenant_id: str
    kind: str
    model: str
    status: JobStatus
    band: Band
    input: str
    metadata: str
    output_format: str
    num_previews: int
    live: bool = False
    cost_seconds: float
    step_tokens: int
    timeout: float | None
    deadline: float | None
    seq: int
    attempt: int = 0
    lease_token: int = 0
    num_transient: int = 0
    num_worker_lost: int = 0
    num_preempted: int = 0
    num_events: int
    version: int
    worker_id: str | None = None
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None
    actual_seconds: float | None = None
    result: str | None = None
    error: str | None = None
    is_erased: bool = False
    is_suspect: bool = False
    decode_seconds: float = 0.0
    latent_bytes: int = 0
    latents: str | None = None
    num_latents_lost: int = 0
    checkpoint: str | None = None
    finish_by: float | None = None
    best_effort: bool = False
    exact: bool = False
    asked: str | None = None
    webhook: str | None
    batch_id: str | None
    custom_id: str | None
    prompt: str | None
    traceparent: str | None = None
    kept_seconds: float = 0.0
    retention_seconds: float | None = None
    forget_delivered: bool = False
    forget_at: float | None = None
    max_attempts: int | None = None
    fallback: str | None = None
    requested_model: str | None = None
    worker_hint: str | None = None

    @property
    def lane(self) -> str:
        """Key of the lane that the job is in while it is ready."""
        return lane_of(self)

    @property
    def adapters(self) -> str:
        """The digests of the adapters that its next phase needs, separated by spaces."""
        if self.is_denoised or '"digest"' not in self.input:
            return ""
        return " ".join(str(use.digest) for use in stored_uses(orjson.loads(self.input)))

    @property
    def hint(self) -> str:
        """Key that its worker is chosen by, of this tenant alone; "" if any will do, as for decoding."""
        return f"{self.tenant_id}|{self.worker_hint}" if self.worker_hint and not self.is_denoised else ""

    @property
    def is_denoised(self) -> bool:
        """True if the job's latents are finished, and it waits to be decoded or is being so."""
        return self.latents is not None

    @property
    def work_seconds(self) -> float:
        """Predicted device-seconds of what is still to be done."""
        whole = self.decode_seconds if self.is_denoised else self.cost_seconds
        return max(whole - self.kept_seconds, 0.0)

    @property
    def start_by(self) -> float | None:
        """Time at which the job expires in the queue.

        `deadline` bounds the wait for its first attempt alone, and `finish_by` that for every one.
        """
        times = []
        if self.deadline is not None and self.started_at is None:
            times.append(self.deadline)
        if self.latest_start is not None and not self.best_effort:
            times.append(self.latest_start)
        return min(times, default=None)

    @property
    def latest_start(self) -> float | None:
        """Latest start with which its deadline can be met, as far as predictions are right."""
        return None if self.finish_by is None else self.finish_by - self.work_seconds

    @property
    def denoised_seconds(self) -> float:
        """Device-seconds that its latents took, 0 while there are none."""
        return 0.0 if self.latents is None else float(orjson.loads(self.latents)["seconds"])

    @property
    def latents_token(self) -> int | None:
        """Token of the lease that uploaded its latents, `None` while there are none."""
        return None if self.latents is None else int(orjson.loads(self.latents)["lease_token"])


JOB_COLUMNS = tuple(field.name for field in fields(JobRecord))
CHANGING_COLUMNS = (
    "status",
    "attempt",
    "lease_token",
    "num_transient",
    "num_worker_lost",
    "num_preempted",
    "num_events",
    "version",
    "worker_id",
    "started_at",
    "finished_at",
    "actual_seconds",
    "result",
    "error",
    "is_erased",
    "is_suspect",
    "latents",
    "num_latents_lost",
    "checkpoint",
    "kept_seconds",
    "forget_at",
)
"""Columns that a change of a job's state writes; the others stay as they were submitted."""


def dump(value: object) -> str:
    """Encode a value, dataclasses included, as JSON text."""
    return orjson.dumps(value).decode()


def _dump_prompt(prompt: PromptRecord) -> str:
    # Not the dataclass as it is: the details of its findings may quote the prompt, and are not stored.
    return dump(prompt.to_dict())


@dataclass(frozen=True)
class JsonColumn:
    """A pair of functions that decode a column from JSON text, and encode it."""

    load: Callable[[str], Any]
    dump: Callable[[Any], str] = dump


JSON_COLUMNS: Mapping[str, JsonColumn] = {
    "input": JsonColumn(orjson.loads),
    "asked": JsonColumn(orjson.loads),
    "metadata": JsonColumn(orjson.loads),
    "webhook": JsonColumn(partial(from_json, Webhook)),
    "prompt": JsonColumn(partial(from_json, PromptRecord), _dump_prompt),
    "result": JsonColumn(partial(from_json, JobResult)),
    "error": JsonColumn(partial(from_json, JobError)),
    "fallback": JsonColumn(partial(from_json, Fallback)),
    "latents": JsonColumn(partial(from_json, StoredLatents)),
    "checkpoint": JsonColumn(partial(from_json, StoredCheckpoint)),
}

BANDS = {band.value: band for band in Band}
"""Bands by value: a lookup is much faster than `Band(value)`, and a claim does one for each lane."""
_STATUSES = {status.value: status for status in JobStatus}


def _shared_with(other: type) -> tuple[str, ...]:
    """Return the fields of a dataclass that are also columns of a job."""
    return tuple(field.name for field in fields(other) if field.name in JOB_COLUMNS)


_SUBMITTED = _shared_with(NewJob)
_SHOWN = _shared_with(Job)
_LEASED = _shared_with(Lease)


def lane_of(job: Job | JobRecord) -> str:
    """Return the key of the job's lane: jobs of one band, tenant, model and phase are served in their order.

    Those that must be exact have lanes of their own, until they are decoded: no autoencoder is quantized.

    No two lanes share a key: a bar in the tenant's name is escaped, and the model's name comes last.
    """
    tenant_id = job.tenant_id.replace("%", "%25").replace("|", "%7C")
    kind = "d" if job.is_denoised else "x" if job.exact else ""
    return f"{job.band.rank}{kind}|{tenant_id}|{job.model}"


def new_record(new: NewJob, *, job_id: str, seq: int, now: float) -> JobRecord:
    """Return the row of a job that is submitted now and gets place `seq` in its tenant's queue."""
    submitted = {name: encoded(name, getattr(new, name)) for name in _SUBMITTED}
    return JobRecord(
        **submitted,
        id=job_id,
        status=JobStatus.QUEUED,
        deadline=None if new.expires_in is None else now + new.expires_in,
        finish_by=None if new.finish_in is None else now + new.finish_in,
        seq=seq,
        num_events=1,
        version=1,
        created_at=now,
    )


def record_of(row: Iterable[Any]) -> JobRecord:
    """Return the record in a row whose first columns are `JOB_COLUMNS`."""
    # One zip is several times faster than a lookup by name for each column, and every claim and
    # every end of an attempt comes through here.
    values = dict(zip(JOB_COLUMNS, row, strict=False))
    values["band"], values["status"] = BANDS[values["band"]], _STATUSES[values["status"]]
    return JobRecord(**values)


def job_of(record: JobRecord, phase: str | None = None, progress: Progress | None = None) -> Job:
    """Return the job as clients see it; `phase` and `progress` come from its lease."""
    return Job(
        **_decoded(record, _SHOWN),
        is_denoised=record.is_denoised,
        phase=None if phase is None else Phase(phase),
        progress=progress,
    )


def ended_of(record: JobRecord, before: JobStatus, now: float) -> EndedJob:
    """Return the job, whose status was `before` and has become final `now`."""
    return EndedJob(
        id=record.id,
        tenant_id=record.tenant_id,
        model=record.model,
        status=record.status,
        input=orjson.loads(record.input),
        created_at=record.created_at,
        started_at=record.started_at,
        finished_at=record.finished_at or now,
        error_code=None if record.error is None else orjson.loads(record.error)["code"],
        was_final=before.is_final,
        worker_id=record.worker_id,
        traceparent=record.traceparent,
    )


def lease_of(record: JobRecord, lease_seconds: float, until: LeaseEnd = LeaseEnd.FILES) -> Lease:
    """Return the lease under which a worker runs the job from now on."""
    return Lease(**_decoded(record, _LEASED), job_id=record.id, lease_seconds=lease_seconds, until=until)


def encoded(name: str, value: Any) -> Any:
    """Return a value as the column `name` has it."""
    return JSON_COLUMNS[name].dump(value) if name in JSON_COLUMNS and value is not None else value


def _decoded(record: JobRecord, names: Collection[str]) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in names}
    for name in values.keys() & JSON_COLUMNS.keys():
        if values[name] is not None:
            values[name] = JSON_COLUMNS[name].load(values[name])
    return values
