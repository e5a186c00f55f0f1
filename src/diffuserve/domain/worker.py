"""What workers and the control plane say to each other. The client and the API share these shapes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.job import Band, JobError, JobResult, Phase
from diffuserve.domain.resources.base import Resource

_HEARTBEATS_A_LEASE = 3


class WorkerState(StrEnum):
    INITIALIZING = "initializing"
    READY = "ready"
    OCCUPIED = "occupied"
    DRAINING = "draining"
    STALLED = "stalled"
    LOST = "lost"  # said by the control plane of a worker that it no longer hears


@dataclass(frozen=True, kw_only=True)
class ModelOffer:
    """A model that a worker serves: its `ModelSpec`, and the `CostFit` to start from, as dicts."""

    spec: Mapping[str, Any]
    fit: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """A worker's condition, sent with every heartbeat. `timestamp` is the worker's own clock.

    `image_filter` is the `FilterInfo` of what looks at its images, as a dict; `None` where nothing
    does, and until the engine is ready.
    """

    state: WorkerState
    timestamp: float = 0.0
    num_gpus: int = 0
    num_cpus: int = 0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    resident_models: tuple[str, ...] = ()
    last_step_seconds: float | None = None
    num_running: int = 0
    image_filter: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A worker's first words. `price_per_hour` in any one currency; `is_spot` may vanish at short notice."""

    models: tuple[ModelOffer, ...]
    report: WorkerReport
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    price_per_hour: float | None = None
    is_spot: bool = False


@dataclass(frozen=True)
class Registered:
    """The control plane's answer: the worker's id and the times that both go by, in seconds.

    `asks_for_upload_urls`: finished files go straight to a bucket, each by a URL of its own.
    """

    worker_id: str
    lease_seconds: float
    heartbeat_seconds: float
    asks_for_upload_urls: bool = False


def check_times(lease_seconds: float, heartbeat_seconds: float) -> None:
    """Raises `InvalidParams` where one late heartbeat would lose a lease."""
    if lease_seconds < _HEARTBEATS_A_LEASE * heartbeat_seconds:
        raise InvalidParams(
            "heartbeat_seconds",
            heartbeat_seconds,
            f"must be at most a third of lease_seconds ({lease_seconds:g}), "
            "so that one that is late loses no job",
        )


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker as the store knows it."""

    id: str
    name: str
    state: WorkerState
    labels: Mapping[str, str]
    models: tuple[str, ...]
    report: WorkerReport
    registered_at: float
    heartbeat_at: float
    is_draining: bool = False
    price_per_hour: float | None = None
    is_spot: bool = False
    num_leases: int = 0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Room for work: at most `num_jobs`, together at most `num_tokens` a step (but always one job).

    The same `claim_id` gets the same leases again, so a lost answer loses nothing.
    """

    claim_id: str
    num_jobs: int
    num_tokens: int | None = None
    models: tuple[str, ...] = ()
    resident_models: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to run a job until it expires, proven by `lease_token` in every write.

    An engine died while it was at a job that `is_suspect`: such a job runs alone.
    """

    job_id: str
    lease_token: int
    kind: str
    model: str
    input: Mapping[str, Any]
    attempt: int
    lease_seconds: float
    band: Band = Band.STANDARD
    is_suspect: bool = False
    step_tokens: int = 0
    cost_seconds: float = 0.0
    timeout: float | None = None
    num_previews: int = 0
    output_format: str = "png"


@dataclass(frozen=True, kw_only=True)
class ClaimedLeases(Resource):
    """Response to a claim; empty if there is no job for the worker."""

    leases: tuple[Lease, ...]


@dataclass(frozen=True, kw_only=True)
class HeldLease:
    """A lease that a worker holds and wants to keep, and how far its job is."""

    job_id: str
    lease_token: int
    phase: Phase | None = None
    step: int = 0
    total: int = 0


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """`held` leases are renewed; those not named run out. `fits` are `CostFit`s by model."""

    report: WorkerReport
    held: tuple[HeldLease, ...] = ()
    fits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ControlCommands:
    """What the control plane wants of a worker: jobs to cancel, leases that are lost, to drain."""

    cancel: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    drain: bool = False

    def __bool__(self) -> bool:
        return bool(self.cancel or self.lost or self.drain)


@dataclass(frozen=True, kw_only=True)
class ProgressReport:
    """News of a running job for whoever watches it. `preview` is a PNG in base64."""

    lease_token: int
    phase: Phase
    step: int = 0
    total: int = 0
    preview: str | None = None
    preview_index: int | None = None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The end of a job that went well. `actual_seconds` are the device-seconds that it took."""

    lease_token: int
    result: JobResult
    actual_seconds: float


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The end of an attempt that went wrong; a retryable one is tried again, a few times."""

    lease_token: int
    error: JobError
    actual_seconds: float = 0.0


class ReleaseCause(StrEnum):
    """Why a worker hands a job back.

    On purpose, or because its engine died of another job, which are free; or because its engine died.
    """

    DRAIN = "drain"
    BYSTANDER = "bystander"
    WORKER_LOST = "worker_lost"


@dataclass(frozen=True, kw_only=True)
class Release:
    """`is_suspect`: the engine died while it was at this job."""

    lease_token: int
    cause: ReleaseCause = ReleaseCause.DRAIN
    is_suspect: bool = False


@dataclass(frozen=True)
class LeaseOutcome:
    """What became of a job after a worker's last word on it."""

    job_id: str
    status: str


@dataclass(frozen=True, kw_only=True)
class StoredFile(Resource):
    """Uploaded file as it is stored; `sha256` in hexadecimal."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class UploadUrl(Resource):
    """URL of the bucket that accepts a file by PUT; `None` if the control plane takes files itself."""

    url: str | None
