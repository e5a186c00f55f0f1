"""A snapshot of the server: the state of the store, as the resource that operators read."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from diffuserve.api.operators.shares import device_seconds_of, tenant_shares, useful_share
from diffuserve.api.resources.serializers import worker_fields
from diffuserve.domain.durations import percentile
from diffuserve.domain.jobs.job import FINAL_STATUSES, Band, Phase
from diffuserve.domain.resources.operations import (
    BandResource,
    BatchingResource,
    FailingWebhookResource,
    FailureResource,
    LaneResource,
    LatencyResource,
    OperationsResource,
    QueueTotalsResource,
    ReadinessResource,
    RunningJobResource,
    ThroughputResource,
    WatchedWorkerResource,
)
from diffuserve.domain.text.timestamps import to_rfc3339
from diffuserve.domain.workers.readiness import why_not_ready
from diffuserve.domain.workers.worker import Worker, WorkerState
from diffuserve.jobs.database.tallies import Tallies
from diffuserve.jobs.database.tally import TallyCount, TallyKind
from diffuserve.jobs.reads.overview import (
    FailedDelivery,
    FailedJob,
    LaneState,
    Overview,
    RunningJob,
    WatchedEndpoint,
)

MAX_WORKERS = 500
MAX_LISTED = 50
_MAX_JOBS_OF_WORKER = 32
_PHASES = {phase.value: phase for phase in Phase}  # a lookup is faster than `Phase(value)`

LiveSteps = Callable[[str], Mapping[str, Any] | None]
"""Returns the newest progress of a job that this process has heard of, if any."""


def snapshot_of(overview: Overview, revision: int, live: LiveSteps) -> OperationsResource:
    """Build the resource of the store's state."""
    workers, counted = overview.workers, overview.tallies
    reason = why_not_ready(workers)
    return OperationsResource(
        at=to_rfc3339(overview.now),
        revision=revision,
        ready=ReadinessResource(is_ready=reason is None, reason=reason),
        num_workers=dict(Counter(worker.state.value for worker in workers)),
        workers=_workers(workers[:MAX_WORKERS], overview.running, live),
        queue=_queue(overview),
        num_lanes=len(overview.lanes),
        lanes=_largest_lanes(overview.lanes),
        throughput=_throughput(counted),
        latency=_latency(counted),
        batch=_batching(workers, counted),
        device_seconds=device_seconds_of(counted),
        num_tenants=len(overview.weights),
        tenants=tenant_shares(overview, MAX_LISTED),
        failures=_failures(overview.failures),
        webhooks=_webhooks(overview.endpoints, overview.failed_deliveries),
    )


def _workers(
    workers: Sequence[Worker], running: Iterable[RunningJob], live: LiveSteps
) -> tuple[WatchedWorkerResource, ...]:
    jobs: defaultdict[str, list[RunningJob]] = defaultdict(list)
    for job in running:
        jobs[job.worker_id].append(job)
    return tuple(
        WatchedWorkerResource(
            **worker_fields(worker),
            jobs=tuple(_running_job(job, live(job.id)) for job in jobs[worker.id][:_MAX_JOBS_OF_WORKER]),
        )
        for worker in workers
    )


def _running_job(job: RunningJob, live: Mapping[str, Any] | None) -> RunningJobResource:
    """Build a running job's resource from the further one of its stored and its live progress."""
    is_ahead = live is not None and live["step"] >= job.step
    phase, step, total = (
        (live["phase"], live["step"], live["total"])
        if live and is_ahead
        else (job.phase, job.step, job.total)
    )
    return RunningJobResource(
        id=job.id,
        tenant_id=job.tenant_id,
        model=job.model,
        phase=None if phase is None else _PHASES[phase],
        step=step,
        total=total,
        is_canceling=job.is_canceling,
    )


def _queue(overview: Overview) -> QueueTotalsResource:
    by_band = {band: [lane for lane in overview.lanes if lane.band is band] for band in Band}
    return QueueTotalsResource(
        **_sum(overview.lanes),
        num_delayed=overview.num_delayed,
        num_running=len(overview.running),
        bands=tuple(BandResource(id=band, **_sum(lanes)) for band, lanes in by_band.items()),
    )


def _largest_lanes(lanes: Sequence[LaneState]) -> tuple[LaneResource, ...]:
    """Return the lanes with the most work, in order of their ids."""
    largest = heapq.nsmallest(
        MAX_LISTED, lanes, key=lambda lane: (-lane.work_seconds, lane.band, lane.tenant_id)
    )
    return tuple(_lane(lane) for lane in sorted(largest, key=lambda lane: (lane.band, lane.tenant_id)))


def _lane(lane: LaneState) -> LaneResource:
    lane_id = f"{lane.band.value}/{lane.tenant_id}"
    return LaneResource(id=lane_id, band=lane.band, tenant_id=lane.tenant_id, **_sum([lane]))


def _sum(lanes: Sequence[LaneState]) -> dict[str, Any]:
    """Return the fields of a `QueuedWorkResource` of these lanes together."""
    oldest_at = min((lane.oldest_at for lane in lanes), default=None)
    return {
        "num_ready": sum(lane.num_ready for lane in lanes),
        "work_seconds": round(sum(lane.work_seconds for lane in lanes), 3),
        "oldest_at": to_rfc3339(oldest_at),
    }


def _throughput(counted: Tallies) -> ThroughputResource:
    return ThroughputResource(
        per_minute={
            status.value: round(60.0 * counted.minute.get(status, 0) / counted.minute_seconds, 2)
            for status in sorted(FINAL_STATUSES)
        }
    )


def _latency(counted: Tallies) -> LatencyResource:
    queue, run = _durations(counted.of(TallyKind.QUEUE)), _durations(counted.of(TallyKind.RUN))
    return LatencyResource(
        num_jobs=sum(run.values()),
        queue_p50=percentile(queue, 0.5),
        queue_p95=percentile(queue, 0.95),
        run_p50=percentile(run, 0.5),
        run_p95=percentile(run, 0.95),
    )


def _durations(counts: Mapping[str, TallyCount]) -> dict[int, int]:
    return {int(bucket): count.num for bucket, count in counts.items()}


def _batching(workers: Iterable[Worker], counted: Tallies) -> BatchingResource:
    reports = [
        worker.report
        for worker in workers
        if worker.state is not WorkerState.LOST and worker.report.mean_batch is not None
    ]
    return BatchingResource(
        mean_batch_size=_mean([report.mean_batch for report in reports], 2),
        mean_step_seconds=_mean([report.last_step_seconds for report in reports], 4),
        useful_share=useful_share(counted),
    )


def _mean(values: Iterable[float | None], digits: int) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), digits) if known else None


def _failures(failed: Iterable[FailedJob]) -> tuple[FailureResource, ...]:
    by_code: defaultdict[str, list[FailedJob]] = defaultdict(list)
    for job in failed:
        by_code[job.code].append(job)
    return tuple(
        FailureResource(
            id=code,
            count=len(jobs),
            example_job_id=jobs[0].id,
            message=jobs[0].message,
            last_at=to_rfc3339(jobs[0].finished_at),
        )
        for code, jobs in sorted(by_code.items())
    )


def _webhooks(
    endpoints: Sequence[WatchedEndpoint], failed: Iterable[FailedDelivery]
) -> tuple[FailingWebhookResource, ...]:
    by_endpoint: defaultdict[str, list[FailedDelivery]] = defaultdict(list)
    for delivery in failed:
        by_endpoint[delivery.endpoint_id].append(delivery)
    most_first = sorted(endpoints, key=lambda endpoint: (-len(by_endpoint[endpoint.id]), endpoint.id))
    shown = sorted(most_first[:MAX_LISTED], key=lambda endpoint: endpoint.id)
    return tuple(_failing_webhook(endpoint, by_endpoint[endpoint.id]) for endpoint in shown)


def _failing_webhook(endpoint: WatchedEndpoint, failed: Sequence[FailedDelivery]) -> FailingWebhookResource:
    newest = failed[0] if failed else None
    return FailingWebhookResource(
        **vars(endpoint),
        num_failed=len(failed),
        last_status=newest.status if newest else None,
        last_error=newest.error if newest else None,
        last_at=to_rfc3339(newest.at) if newest else None,
    )
