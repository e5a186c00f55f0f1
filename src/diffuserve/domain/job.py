"""A job: one accepted piece of work, from the queue to its one final status."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from diffuserve.domain.prompt import PromptRecord
from diffuserve.domain.webhook import Webhook

IMAGE_GENERATE = "image.generate"


class JobStatus(StrEnum):
    """`queued → running → succeeded | failed | canceled | expired`, with `canceling` on the way out."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"

    @property
    def is_final(self) -> bool:
        return self in FINAL_STATUSES

    @property
    def is_leased(self) -> bool:
        """Whether a worker holds the job."""
        return self in (JobStatus.RUNNING, JobStatus.CANCELING)


FINAL_STATUSES = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELED, JobStatus.EXPIRED})


class Band(StrEnum):
    """How urgent a job is; a better band goes first until a worse one has waited long enough."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"

    @property
    def rank(self) -> int:
        """0 is served first."""
        return _BANDS.index(self)


_BANDS = (Band.INTERACTIVE, Band.STANDARD, Band.BATCH)


class Phase(StrEnum):
    """Where a running job is."""

    LOAD = "load"
    ENCODE = "encode"
    DENOISE = "denoise"
    DECODE = "decode"
    FILTER = "filter"
    UPLOAD = "upload"


@dataclass(frozen=True)
class Progress:
    """Denoising steps done, of all."""

    step: int
    total: int

    @property
    def fraction(self) -> float:
        """In 0…1."""
        return min(self.step / self.total, 1.0) if self.total > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A finished file. `name` is unique within its job; `index` counts the images of a job."""

    name: str
    content_type: str
    size_bytes: int
    sha256: str
    width: int
    height: int
    index: int = 0
    role: str = "image"
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What a job gave. `timings` are seconds by the worker's clock; `input` has every default filled in.

    `safety["image"]` says which filter saw the images and what it found; it is empty without a filter.
    """

    artifacts: tuple[Artifact, ...] = ()
    input: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    safety: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JobError:
    """Why a job failed: `code` for machines, `message` for people.

    `safety` is as in `JobResult`, for a job whose images are kept in.
    """

    code: str
    message: str
    retryable: bool = False
    safety: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job as it is accepted: checked, priced, not yet stored.

    `cost_seconds` are the predicted device-seconds, `step_tokens` the packed tokens of one denoising
    step. `expires_in` bounds the wait in the queue and `timeout` one run, both in seconds.
    `num_previews` images are sent on the way. An item of a batch has the `custom_id` that its
    client gave it. `fingerprint` stands for the body that came with
    `idempotency_key`.
    """

    tenant_id: str
    model: str
    input: Mapping[str, Any]
    cost_seconds: float
    step_tokens: int = 0
    kind: str = IMAGE_GENERATE
    band: Band = Band.STANDARD
    expires_in: float | None = None
    timeout: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    num_previews: int = 0
    output_format: str = "png"
    batch_id: str | None = None
    custom_id: str | None = None
    prompt: PromptRecord | None = None
    webhook: Webhook | None = None
    idempotency_key: str | None = None
    fingerprint: str = ""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as the store knows it. Times are seconds since the epoch by the store's clock.

    `attempt` counts leases granted; `lease_token` is that of the newest. `version` changes with
    every change of the row.
    """

    id: str
    tenant_id: str
    kind: str
    model: str
    status: JobStatus
    band: Band
    input: Mapping[str, Any]
    metadata: Mapping[str, Any]
    cost_seconds: float
    step_tokens: int
    attempt: int
    lease_token: int
    version: int
    created_at: float
    num_previews: int = 0
    output_format: str = "png"
    batch_id: str | None = None
    custom_id: str | None = None
    prompt: PromptRecord | None = None
    timeout: float | None = None
    deadline: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    worker_id: str | None = None
    phase: Phase | None = None
    progress: Progress | None = None
    actual_seconds: float | None = None
    result: JobResult | None = None
    error: JobError | None = None


@dataclass(frozen=True)
class JobEvent:
    """One entry of a job's log; `seq` counts from 1 without gaps."""

    job_id: str
    seq: int
    type: str
    data: Mapping[str, Any]
    created_at: float


@dataclass(frozen=True)
class QueueEstimate:
    """How many jobs are likely to start first, and in how many seconds this one is likely to finish."""

    ahead: int
    eta_s_low: float
    eta_s_high: float
