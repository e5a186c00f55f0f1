"""State of a server as its operators watch it. Times are RFC 3339 strings.

Every item of a list has an `id`, by which a change of the list names it (see `diffuserve.domain.deltas`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diffuserve.domain.jobs.job import Band, Phase
from diffuserve.domain.resource_base import Resource
from diffuserve.domain.resources.worker import WorkerResource


@dataclass(frozen=True, kw_only=True)
class ReadinessResource(Resource):
    """Readiness of the server, as `/readyz` tells it."""

    is_ready: bool
    reason: str | None = field(metadata={"description": "Why no job would run."})


@dataclass(frozen=True, kw_only=True)
class RunningJobResource(Resource):
    """Job that a worker runs. `step` of `total` are denoising steps."""

    id: str
    tenant_id: str
    model: str
    phase: Phase | None
    step: int
    total: int
    is_canceling: bool


@dataclass(frozen=True, kw_only=True)
class WatchedWorkerResource(WorkerResource):
    """Worker with its jobs; `num_leases` counts those that are not listed too."""

    jobs: tuple[RunningJobResource, ...] = field(
        metadata={"description": "At most 32, in the order of their ids."}
    )


@dataclass(frozen=True, kw_only=True)
class QueuedWorkResource(Resource):
    """Ready jobs; `work_seconds` are their predicted device-seconds. `oldest_at` is null without any."""

    num_ready: int
    work_seconds: float
    oldest_at: str | None = field(metadata={"description": "When the oldest of them was submitted."})


@dataclass(frozen=True, kw_only=True)
class BandResource(QueuedWorkResource):
    """Ready jobs of a band, which is its `id`."""

    id: Band


@dataclass(frozen=True, kw_only=True)
class LaneResource(QueuedWorkResource):
    """Ready jobs of a band and a tenant, whatever their models."""

    id: str
    band: Band
    tenant_id: str


@dataclass(frozen=True, kw_only=True)
class QueueTotalsResource(QueuedWorkResource):
    """Sums of all ready jobs. Jobs that are `num_delayed` wait for another attempt, and are not ready."""

    num_delayed: int
    num_running: int
    bands: tuple[BandResource, ...]


@dataclass(frozen=True, kw_only=True)
class ThroughputResource(Resource):
    """Jobs that ended in the last minute, by their final status."""

    per_minute: Mapping[str, float] = field(
        metadata={"description": "`succeeded`, `failed`, `canceled` and `expired`; all four are there."}
    )


@dataclass(frozen=True, kw_only=True)
class LatencyResource(Resource):
    """Percentiles, in seconds, of the jobs that succeeded in the last five minutes; null without any.

    A job's wait in the queue ends, and its run begins, with its first lease. They are read from counts by
    duration, and differ from the true percentiles by at most a tenth.
    """

    num_jobs: int
    queue_p50: float | None
    queue_p95: float | None
    run_p50: float | None
    run_p95: float | None


@dataclass(frozen=True, kw_only=True)
class BatchingResource(Resource):
    """Means of what live workers reported last; null where none of them took a step lately."""

    mean_batch_size: float | None
    mean_step_seconds: float | None
    useful_share: float | None = field(
        metadata={
            "description": "Part, in 0…1, of the device-seconds of the last five minutes that went into "
            "attempts which succeeded or finished their latents."
        }
    )


@dataclass(frozen=True, kw_only=True)
class OutcomeSecondsResource(Resource):
    """Device-seconds of the attempts that ended in the last five minutes, by outcome, which is the `id`.

    `denoised` ended with finished latents, which another worker decodes; `queued` went wrong, and another
    attempt follows. The others are final statuses.
    """

    id: str
    seconds: float
    num_attempts: int


@dataclass(frozen=True, kw_only=True)
class TenantShareResource(Resource):
    """Share that a tenant had of the devices in the last five minutes, whose name is the `id`.

    `share` is its part, in 0…1, of all device-seconds. `fair_share` is that of its weight among the weights
    of all tenants that wait, run or used devices: what it gets while all of them wait.
    """

    id: str
    weight: float
    device_seconds: float
    share: float
    fair_share: float
    num_ready: int
    num_running: int


@dataclass(frozen=True, kw_only=True)
class FailureResource(Resource):
    """Jobs that failed in the last hour with one error code, which is the `id`; the example is the newest."""

    id: str
    count: int
    example_job_id: str
    message: str
    last_at: str


@dataclass(frozen=True, kw_only=True)
class FailingWebhookResource(Resource):
    """Endpoint that is disabled, or whose deliveries failed in the last day. The errors are the newest."""

    id: str
    tenant_id: str
    url: str
    num_failed: int = field(metadata={"description": "Deliveries whose last attempt failed."})
    last_status: int | None
    last_error: str | None
    last_at: str | None
    is_disabled: bool


@dataclass(frozen=True, kw_only=True)
class OperationsResource(Resource):
    """State of a server now: the same at every replica of the control plane, but for `revision`.

    Lists are bounded: the `num_` fields beside them count all. The largest lanes are those with the most
    work, the largest tenants those that used or wait for the most device-seconds.
    """

    at: str = field(metadata={"description": "Time of this state by the clock of the store."})
    revision: int = field(metadata={"description": "Counts the states that this replica has read."})
    ready: ReadinessResource
    num_workers: Mapping[str, int] = field(
        metadata={"description": "Workers by state, those included that are not listed."}
    )
    workers: tuple[WatchedWorkerResource, ...] = field(
        metadata={"description": "At most 500, in the order of their registration."}
    )
    queue: QueueTotalsResource
    num_lanes: int
    lanes: tuple[LaneResource, ...] = field(metadata={"description": "The 50 largest, in order of `id`."})
    throughput: ThroughputResource
    latency: LatencyResource
    batch: BatchingResource
    device_seconds: tuple[OutcomeSecondsResource, ...]
    num_tenants: int
    tenants: tuple[TenantShareResource, ...] = field(
        metadata={"description": "The 50 largest, in order of `id`."}
    )
    failures: tuple[FailureResource, ...] = field(
        metadata={"description": "By code; they group at most the 500 newest jobs that failed."}
    )
    webhooks: tuple[FailingWebhookResource, ...] = field(metadata={"description": "At most 50."})


@dataclass(frozen=True, kw_only=True)
class HistoryPointResource(Resource):
    """State of a server at one time, for charts: the fields of `OperationsResource` that are numbers."""

    at: str
    per_minute: Mapping[str, float]
    queue_p50: float | None
    queue_p95: float | None
    run_p50: float | None
    run_p95: float | None
    num_ready: int
    work_seconds: float
    num_running: int
    num_workers: int = field(metadata={"description": "Workers that are ready or occupied."})
    mean_batch_size: float | None
    mean_step_seconds: float | None
    useful_share: float | None
    device_seconds: Mapping[str, float] = field(
        metadata={"description": "Those of the five minutes before, by outcome."}
    )


@dataclass(frozen=True, kw_only=True)
class OperationsHistory(Resource):
    """Points of the last hour, one each ten seconds, oldest first; the same at every replica."""

    data: tuple[HistoryPointResource, ...]
