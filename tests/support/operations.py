"""The operators' view as a resource, with one item in each list."""

from dataclasses import asdict
from typing import Any

from diffuserve.domain.jobs.job import Band
from diffuserve.domain.resources.operations import (
    BandResource,
    BatchingResource,
    FailingWebhookResource,
    FailureResource,
    HistoryPointResource,
    LaneResource,
    LatencyResource,
    OperationsHistory,
    OperationsResource,
    OutcomeSecondsResource,
    QueueTotalsResource,
    ReadinessResource,
    RunningJobResource,
    TenantShareResource,
    ThroughputResource,
    WatchedWorkerResource,
)
from diffuserve.domain.resources.worker import WorkerResource

AT = "2026-01-02T03:04:05.250Z"
_QUEUED: dict[str, Any] = {"num_ready": 1, "work_seconds": 2.5, "oldest_at": AT}
_LATENCY: dict[str, float | None] = {"queue_p50": 1.0, "queue_p95": 2.0, "run_p50": 0.5, "run_p95": None}
_BATCH: dict[str, float | None] = {"mean_batch_size": 1.5, "mean_step_seconds": 0.1, "useful_share": 0.9}


def operations_of(worker: WorkerResource) -> OperationsResource:
    """Return a state with this worker, which runs one job."""
    job = RunningJobResource(
        id="job_1", tenant_id="ada", model="m", phase=None, step=1, total=4, is_canceling=False
    )
    fields = {name: getattr(worker, name) for name in asdict(worker)}
    return OperationsResource(
        at=AT,
        revision=1,
        ready=ReadinessResource(is_ready=True, reason=None),
        num_workers={"ready": 1},
        workers=(WatchedWorkerResource(**fields, jobs=(job,)),),
        queue=QueueTotalsResource(
            **_QUEUED, num_delayed=0, num_running=1, bands=(BandResource(id=Band.BATCH, **_QUEUED),)
        ),
        num_lanes=1,
        lanes=(LaneResource(id="batch ada", band=Band.BATCH, tenant_id="ada", **_QUEUED),),
        throughput=ThroughputResource(per_minute={"succeeded": 1.0}),
        latency=LatencyResource(num_jobs=1, **_LATENCY),
        batch=BatchingResource(**_BATCH),
        device_seconds=(OutcomeSecondsResource(id="succeeded", seconds=1.0, num_attempts=1),),
        num_tenants=1,
        tenants=(
            TenantShareResource(
                id="ada", weight=1, device_seconds=1, share=1, fair_share=1, num_ready=1, num_running=1
            ),
        ),
        failures=(FailureResource(id="broken", count=1, example_job_id="job_1", message="no", last_at=AT),),
        webhooks=(
            FailingWebhookResource(
                id="end_1",
                tenant_id="ada",
                url="https://hooks.example/",
                num_failed=1,
                last_status=503,
                last_error=None,
                last_at=AT,
                is_disabled=False,
            ),
        ),
    )


def history() -> OperationsHistory:
    """Return an hour with one point."""
    point = HistoryPointResource(
        at=AT,
        per_minute={"succeeded": 1.0},
        num_ready=1,
        work_seconds=2.5,
        num_running=1,
        num_workers=1,
        device_seconds={"succeeded": 1.0},
        **_LATENCY,
        **_BATCH,
    )
    return OperationsHistory(data=(point,))
