"""Jobs: accepted work, from the queue to its final status."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from diffuserve.domain.bounds import Printable, Size
from diffuserve.domain.jobs.prompt import PromptRecord
from diffuserve.domain.jobs.webhook import Webhook
from diffuserve.domain.requests.request_bounds import MAX_IMAGES, MAX_SECONDS, MAX_SEED
from diffuserve.domain.text.path_parts import FileName, Sha256

IMAGE_GENERATE = "image.generate"
VIDEO_GENERATE = "video.generate"
AUDIO_GENERATE = "audio.generate"
MAX_PREVIEWS = 3
"""Previews that a job may ask for."""
_MAX_FILES = 4 * MAX_IMAGES  # an image or three files of a clip for each index, and a thumbnail
_Side = Annotated[int, Field(ge=1, le=65_535)]
_PhaseSeconds = Annotated[float, Field(ge=0, le=3.2e7, allow_inf_nan=False)]  # a year
_Warning = Annotated[str, StringConstraints(max_length=1_000)]


class JobStatus(StrEnum):
    """Status of a job: `queued → running → succeeded | failed | canceled | expired`.

    A running job that a client canceled is `canceling` until its worker has stopped it.
    """

    QUEUED = "queued"
    RUNNING = "running"
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"

    @property
    def is_final(self) -> bool:
        """True if the job has ended; only an operator can queue it again."""
        return self in FINAL_STATUSES

    @property
    def is_leased(self) -> bool:
        """True if a worker holds a lease on the job."""
        return self in (JobStatus.RUNNING, JobStatus.CANCELING)


FINAL_STATUSES = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELED, JobStatus.EXPIRED})


class Band(StrEnum):
    """Urgency of a job: a better band is served first, unless a job of a worse one has waited too long."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"

    @property
    def rank(self) -> int:
        """Place of the band in the order of service, from 0."""
        return _RANKS[self]


_RANKS = {Band.INTERACTIVE: 0, Band.STANDARD: 1, Band.BATCH: 2}


class Phase(StrEnum):
    """Stage of work that a running job is in."""

    LOAD = "load"
    ENCODE = "encode"
    DENOISE = "denoise"
    DECODE = "decode"
    FILTER = "filter"
    UPLOAD = "upload"


@dataclass(frozen=True)
class Progress:
    """Number of denoising steps done (`step`) out of all (`total`)."""

    step: int
    total: int

    @property
    def fraction(self) -> float:
        """Fraction of the steps that are done."""
        return min(self.step / self.total, 1.0) if self.total > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A finished file of a job. `name` is unique within the job; `index` counts its results from 0.

    `width` and `height` are in pixels, `sha256` is in hex, and `seed` is that of the image. `num_frames` and
    `fps` (frames per second) are those of a clip or an animation, `seconds` the length of a sound, and
    `channels` and `sample_rate`, in Hz, those of a sound or of a clip that has one. Roles: `image`, `video`
    or `audio` for the requested results, `thumbnail`, and `poster` and `sprites` of a clip.
    """

    name: FileName
    content_type: Annotated[str, StringConstraints(pattern="^[a-z]{1,20}/[a-z0-9.+-]{1,80}$")]
    size_bytes: Size
    sha256: Sha256
    width: _Side | None = None
    height: _Side | None = None
    index: Annotated[int, Field(ge=0, lt=MAX_IMAGES)] = 0
    role: str = "image"
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    num_frames: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    fps: Annotated[int, Field(ge=1, le=1_000)] | None = None
    seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS + 1, allow_inf_nan=False)] | None = None
    channels: Annotated[int, Field(ge=1, le=2)] | None = None
    sample_rate: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """Result of a job. `input` has every default filled in; `timings` are seconds, by the worker's clock.

    `safety["image"]` is an `ImagesRecord` as a dict; there is none without an image filter. So is
    `safety["sound"]`, of what has sound, where something judges that.
    """

    artifacts: Annotated[tuple[Artifact, ...], Field(max_length=_MAX_FILES)] = ()
    input: Mapping[str, Any] = field(default_factory=dict)
    timings: Annotated[Mapping[str, _PhaseSeconds], Field(max_length=50)] = field(default_factory=dict)
    warnings: Annotated[tuple[_Warning, ...], Field(max_length=100)] = ()
    safety: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JobError:
    """Reason why a job failed: a stable `code`, and a `message` for people.

    `safety` is as in `JobResult`, for a job whose images were blocked.
    """

    code: Printable
    message: str
    retryable: bool = False
    safety: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """What a job becomes where another model draws it: as in `NewJob`."""

    model: str
    input: Mapping[str, Any]
    asked: Mapping[str, Any] | None
    cost_seconds: float
    decode_seconds: float
    step_tokens: int
    latent_bytes: int


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job that is checked and priced, but not yet stored.

    `cost_seconds` are the predicted device-seconds, `decode_seconds` the part of them for decoding,
    `latent_bytes` the predicted size of the latents, and `step_tokens` the packed tokens of one denoising
    step. `expires_in` limits the wait in the queue and `timeout` one attempt, both in seconds. `finish_in` is
    the time until its deadline, which a job of `best_effort` may miss. An `exact` job is drawn with
    unquantized weights. The worker sends `num_previews` previews while the job runs, and the first clip in
    parts if the job is `live`. `asked` holds the client's values where `input` has the nearest allowed ones.
    An item of a batch has its client's `custom_id`. `fingerprint` is a hash of the body that came with
    `idempotency_key`. `traceparent` is the submission's span in a trace.

    The job is kept for `retention_seconds` after its end, and one to `forget_delivered` only until it is
    delivered. `max_attempts` bounds those that fail. It becomes its `fallback` if it does not start in time,
    and had a `requested_model` if it has become that already. `worker_hint` names the jobs that it would
    share a worker with.
    """

    tenant_id: str
    model: str
    input: Mapping[str, Any]
    cost_seconds: float
    asked: Mapping[str, Any] | None = None
    step_tokens: int = 0
    decode_seconds: float = 0.0
    latent_bytes: int = 0
    kind: str = IMAGE_GENERATE
    band: Band = Band.STANDARD
    expires_in: float | None = None
    finish_in: float | None = None
    best_effort: bool = False
    exact: bool = False
    timeout: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    num_previews: int = 0
    live: bool = False
    output_format: str = "png"
    batch_id: str | None = None
    custom_id: str | None = None
    prompt: PromptRecord | None = None
    webhook: Webhook | None = None
    idempotency_key: str | None = None
    fingerprint: str = ""
    traceparent: str | None = None
    retention_seconds: float | None = None
    forget_delivered: bool = False
    max_attempts: int | None = None
    fallback: Fallback | None = None
    requested_model: str | None = None
    worker_hint: str | None = None

    @property
    def most_seconds(self) -> float:
        """The predicted device-seconds, or those of its fallback if they are more."""
        return max(self.cost_seconds, self.fallback.cost_seconds if self.fallback else 0.0)


@dataclass(frozen=True, kw_only=True)
class EndedJob:
    """A job that has just become final, for the metrics and the log. `input` includes its prompt.

    `was_final` is never true: a second end of a job would be a defect of the store.
    """

    id: str
    tenant_id: str
    model: str
    status: JobStatus
    input: Mapping[str, Any]
    created_at: float
    started_at: float | None
    finished_at: float
    error_code: str | None = None
    was_final: bool = False
    worker_id: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True)
class Revision:
    """The identity of one state of a job: its version and its stored progress."""

    version: int
    phase: Phase | None
    step: int | None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as clients see it. Times are seconds since the epoch, by the store's clock.

    `attempt` counts the leases granted on the job, and `lease_token` is that of the newest one. `version`
    grows with every change. `seq` is the job's place in its tenant's queue. `decode_seconds` is the part of
    `cost_seconds` for decoding, and `kept_seconds` the part that its checkpoint saves. It must start by
    `deadline` and end by `finish_by`, which it may miss if it is `best_effort`. An `exact` job is drawn with
    unquantized weights. `phase` and `progress` are those of a running job at its last heartbeat. A job that
    `is_denoised` has its latents, and waits for decoding or is being decoded. `traceparent` is the
    submission's span in a trace. `requested_model` is the model that was asked for, where its fallback
    draws. The job is deleted at `forget_at`, once it has ended, if that is sooner than the server would; one
    to `forget_delivered` even sooner, once it is delivered.
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
    asked: Mapping[str, Any] | None = None
    decode_seconds: float = 0.0
    kept_seconds: float = 0.0
    is_denoised: bool = False
    seq: int = 0
    num_previews: int = 0
    live: bool = False
    output_format: str = "png"
    batch_id: str | None = None
    custom_id: str | None = None
    prompt: PromptRecord | None = None
    timeout: float | None = None
    deadline: float | None = None
    finish_by: float | None = None
    best_effort: bool = False
    exact: bool = False
    started_at: float | None = None
    finished_at: float | None = None
    worker_id: str | None = None
    phase: Phase | None = None
    progress: Progress | None = None
    actual_seconds: float | None = None
    traceparent: str | None = None
    result: JobResult | None = None
    error: JobError | None = None
    forget_delivered: bool = False
    forget_at: float | None = None
    max_attempts: int | None = None
    fallback: Fallback | None = None
    requested_model: str | None = None
    worker_hint: str | None = None

    @property
    def work_seconds(self) -> float:
        """Predicted device-seconds of the remaining work."""
        whole = self.decode_seconds if self.is_denoised else self.cost_seconds
        return max(whole - self.kept_seconds, 0.0)

    @property
    def revision(self) -> Revision:
        """Revision of this state of the job."""
        return Revision(self.version, self.phase, None if self.progress is None else self.progress.step)


@dataclass(frozen=True)
class JobEvent:
    """An entry of a job's log; `seq` counts from 1 without gaps."""

    job_id: str
    seq: int
    type: str
    data: Mapping[str, Any]
    created_at: float


@dataclass(frozen=True)
class QueueEstimate:
    """Prediction for a queued job.

    `ahead` jobs are likely to start before it, and at most `ahead_high` of those queued now. It is likely to
    finish in `eta_s_low` to `eta_s_high` seconds from now. The times are `None` if there is no estimate, for
    the `reason`; `ahead_high` is `None` in responses of older servers.
    """

    ahead: int
    eta_s_low: float | None
    eta_s_high: float | None
    reason: str | None = None
    ahead_high: int | None = None

    @property
    def likely_seconds(self) -> float | None:
        """The middle of the range."""
        if self.eta_s_low is None or self.eta_s_high is None:
            return None
        return (self.eta_s_low + self.eta_s_high) / 2
