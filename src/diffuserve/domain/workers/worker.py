"""Messages between workers and the control plane, shared by the client and the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from diffuserve.domain.bounds import AllPrintable, Amount, Printable, PrintablePairs, Size, WholeAmount
from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.domain.jobs.claim import MAX_MODELS_OF_KEY
from diffuserve.domain.jobs.job import Band, JobError, JobResult, Phase
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.residency import Residency
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.resource_base import Resource
from diffuserve.domain.safety import FilterInfo
from diffuserve.domain.text.path_parts import FileName, Id, Sha256, Suffix
from diffuserve.domain.workers.model_orders import ModelOrder, OrdersReport
from diffuserve.domain.workers.peers import PeerReport

MAX_WORKERS_OF_KEY = 1_000
"""Workers that the control plane remembers for an API key."""
MAX_RESIDENT_ADAPTERS = 64
"""Adapters in memory that a worker tells of."""
MAX_OWN_ADAPTERS = 256
"""Names of adapters' files of its own that a worker tells of."""
_MAX_PEER_MODELS = 16
_MAX_LABELS = 32


class WorkerRole(StrEnum):
    """Part of the work that a worker does: all of it, up to finished latents, or from them on."""

    ALL = "all"
    DENOISE = "denoise"
    DECODE = "decode"

    @property
    def denoises(self) -> bool:
        """True if workers of this role start jobs."""
        return self is not WorkerRole.DECODE

    @property
    def decodes(self) -> bool:
        """True if workers of this role start from finished latents."""
        return self is not WorkerRole.DENOISE


class WorkerState(StrEnum):
    """State of a worker by its own report; only the control plane sets `LOST`."""

    INITIALIZING = "initializing"
    READY = "ready"
    OCCUPIED = "occupied"
    DRAINING = "draining"
    STALLED = "stalled"
    LOST = "lost"  # its heartbeats have stopped


@dataclass(frozen=True, kw_only=True)
class ModelOffer:
    """Model that a worker serves, and the fit to start from."""

    spec: ModelSpec
    fit: CostFit | None = None


@dataclass(frozen=True, kw_only=True)
class LoadProgress:
    """Progress of a worker that loads its model: the phase, and the bytes of the weights read so far."""

    phase: Printable
    bytes_read: WholeAmount = 0
    bytes_total: WholeAmount = 0

    def __str__(self) -> str:
        if not self.bytes_total:
            return self.phase
        share = min(self.bytes_read / self.bytes_total, 1.0)
        unit, name = (1e9, "GB") if self.bytes_total >= 1e9 else (1e6, "MB")
        return (
            f"{self.phase} {self.bytes_read / unit:.1f} of {self.bytes_total / unit:.1f} {name}, {share:.0%}"
        )


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """State of a worker, sent with every heartbeat. `timestamp` is in seconds by the worker's clock.

    `device_name` is that of its GPUs, `""` without one. `image_filter` checks its images; `None` without a
    filter, and until the engine is ready. `mean_batch` is how
    many requests shared a denoising step, on average since the last report; `None` if there was no step.
    `loading` is the progress of an engine that is not ready yet. `drain_reason` says why the worker drains.
    `quantization` is the number format of its weights, of those that it will load too; `None` until it is
    known, and for workers of versions that do not report it. `withdrawn_models` are those that it offered but
    cannot load, with reasons. `residency` says where its weights are; it is `None` until they are loaded.
    `peers` are the models that it exchanges with peers. `resident_adapters` are the digests of the adapters
    in memory, the most recently used ones of each engine, and `own_adapters` the names for which it has files
    of its own. `orders` is `None` for a worker that takes no orders of models.
    """

    state: WorkerState
    timestamp: Amount = 0.0
    num_gpus: WholeAmount = 0
    device_name: Printable = ""
    num_cpus: WholeAmount = 0
    memory_bytes: WholeAmount = 0
    memory_limit_bytes: WholeAmount = 0
    resident_models: Annotated[tuple[str, ...], AllPrintable] = ()
    last_step_seconds: Amount | None = None
    num_running: WholeAmount = 0
    mean_batch: Amount | None = None
    image_filter: FilterInfo | None = None
    loading: LoadProgress | None = None
    drain_reason: Printable = ""
    quantization: Printable | None = None
    residency: Residency | None = None
    withdrawn_models: PrintablePairs = field(default_factory=dict)
    peers: Annotated[tuple[PeerReport, ...], Field(max_length=_MAX_PEER_MODELS)] = ()
    resident_adapters: Annotated[tuple[Sha256, ...], Field(max_length=MAX_RESIDENT_ADAPTERS)] = ()
    own_adapters: Annotated[tuple[FileName, ...], Field(max_length=MAX_OWN_ADAPTERS)] = ()
    orders: OrdersReport | None = None


@dataclass(frozen=True, kw_only=True)
class Registration:
    """First message of a worker, with a price in the operator's currency. If `is_spot` it may vanish."""

    models: Annotated[tuple[ModelOffer, ...], Field(max_length=MAX_MODELS_OF_KEY)]
    report: WorkerReport
    name: Printable = ""
    labels: Annotated[PrintablePairs, Field(max_length=_MAX_LABELS)] = field(default_factory=dict)
    price_per_hour: Amount | None = None
    is_spot: bool = False
    role: WorkerRole = WorkerRole.ALL


@dataclass(frozen=True)
class Registered:
    """Response to a registration: the worker's id and the timing of leases and heartbeats, in seconds.

    If `asks_for_upload_urls`, the worker requests a URL for each finished file and uploads it to a bucket.
    Files of up to `max_inline_bytes` together may be sent with the completion instead.
    """

    worker_id: str
    lease_seconds: float
    heartbeat_seconds: float
    asks_for_upload_urls: bool = False
    max_inline_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Worker:
    """Worker as it is stored. Times are seconds since the epoch by the store's clock."""

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
    role: WorkerRole = WorkerRole.ALL


class LeaseEnd(StrEnum):
    """Result with which a lease ends: finished latents, which another worker decodes, or files."""

    LATENTS = "latents"
    FILES = "files"


LATENTS_NAME = "latents.safetensors"
"""File of a job's finished latents; no result may have a file of this name."""
LATENTS_ID = "latents"
"""Id of a job's finished latents among the files that its lease reads."""


@dataclass(frozen=True, kw_only=True)
class StoredLatents:
    """Finished latents of a job, stored under the token of the lease that uploaded them.

    `weights` is the hash of the weights that they come from, `seconds` are the device-seconds that they took.
    """

    lease_token: int
    size_bytes: int
    sha256: str
    weights: str
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Right to run a job for `lease_seconds`, proven by `lease_token` in every write.

    The job runs `until` its latents or its files exist. With `latents` or a `checkpoint` it starts from
    these. A job `is_suspect` if an engine died while running it; such a job runs alone. `timeout` is in
    seconds, `cost_seconds` are the predicted device-seconds. A `live` job's first clip is stored in parts
    too. `created_at` is the time of its submission, and `traceparent` the submission's span in a trace.
    """

    job_id: Id
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
    live: bool = False
    output_format: Suffix = "png"
    until: LeaseEnd = LeaseEnd.FILES
    latents: StoredLatents | None = None
    checkpoint: StoredCheckpoint | None = None
    tenant_id: str = ""
    worker_id: str | None = None
    traceparent: str | None = None
    created_at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ClaimedLeases(Resource):
    """Response to a claim; empty if there is no job for the worker."""

    leases: tuple[Lease, ...]


@dataclass(frozen=True, kw_only=True)
class HeldLease:
    """Lease to renew, and the progress of its job."""

    job_id: str
    lease_token: int
    phase: Phase | None = None
    step: WholeAmount = 0
    total: WholeAmount = 0


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Periodic message of a worker. Leases not in `held` expire. `fits` are by model."""

    report: WorkerReport
    held: tuple[HeldLease, ...] = ()
    fits: Mapping[str, CostFit] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ControlCommands:
    """Commands to a worker: jobs to cancel, attempts to preempt, leases it has lost, whether to drain.

    A response to a heartbeat has the last `order` of a model too, again and again.
    """

    cancel: tuple[str, ...] = ()
    preempt: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    drain: bool = False
    order: ModelOrder | None = None

    def __bool__(self) -> bool:
        """Return whether there is any command."""
        return bool(self.cancel or self.preempt or self.lost or self.drain)


@dataclass(frozen=True)
class ReceivedCommands:
    """Commands that a worker has received. Without `preempt` it is of a version that cannot preempt jobs."""

    cancel: tuple[str, ...] = ()
    preempt: tuple[str, ...] | None = ()
    drain: bool = False

    def new_among(self, commands: ControlCommands) -> ControlCommands:
        """Return those of the commands that the worker has not received."""
        preempt = () if self.preempt is None else commands.preempt
        return ControlCommands(
            cancel=tuple(job_id for job_id in commands.cancel if job_id not in self.cancel),
            preempt=tuple(job_id for job_id in preempt if job_id not in (self.preempt or ())),
            lost=commands.lost,
            drain=commands.drain and not self.drain,
        )


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Success of a job. `actual_seconds` are the device-seconds that it took.

    `contents` are small files of the result by their names, in base64; all others were uploaded before.
    """

    lease_token: int
    result: JobResult
    actual_seconds: Amount
    contents: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class HandOver:
    """End of a job's first phase: its latents are stored, in `actual_seconds` device-seconds.

    `sha256`, in hexadecimal, is that of their file, `weights` the hash of the weights that they come from.
    """

    lease_token: int
    size_bytes: Size
    sha256: Sha256
    weights: Sha256
    actual_seconds: Amount


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Failure of an attempt; the job is retried a few times if the error is retryable.

    `actual_seconds` are the device-seconds that it took; earlier versions do not report them.
    """

    lease_token: int
    error: JobError
    actual_seconds: Amount | None = None


class ReleaseCause(StrEnum):
    """Reason for a worker to release a job. Only `WORKER_LOST` counts toward the limit of lost workers."""

    DRAIN = "drain"  # the worker is leaving
    SERVER_RESTARTED = "server_restarted"  # the worker died with its server, which was started again
    PREEMPTED = "preempted"  # the worker was told to make room for a more urgent job
    INTERRUPTED = "interrupted"  # its machine is taken away
    BYSTANDER = "bystander"  # its engine died while running another job
    WORKER_LOST = "worker_lost"  # its engine died


@dataclass(frozen=True, kw_only=True)
class Release:
    """Return of a job to the queue. The job `is_suspect` if the engine died while running it.

    `actual_seconds` are the device-seconds in the checkpoint that the worker has stored of it, if any.
    """

    lease_token: int
    cause: ReleaseCause = ReleaseCause.DRAIN
    is_suspect: bool = False
    actual_seconds: Amount | None = None


@dataclass(frozen=True)
class LeaseOutcome:
    """Status of a job after its worker has completed, failed or released it."""

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


@dataclass(frozen=True, kw_only=True)
class LeasedFile(Resource):
    """File that a leased job reads; `sha256` in hexadecimal. `url` serves it, else the control plane does."""

    id: str
    size_bytes: int
    sha256: str
    url: str | None = None


@dataclass(frozen=True, kw_only=True)
class LeasedFiles(Resource):
    """Files that a leased job reads, each once."""

    files: tuple[LeasedFile, ...]
