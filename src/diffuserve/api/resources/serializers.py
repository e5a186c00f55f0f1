"""Resources of the API, built from what the store holds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from diffuserve.api.files.urls import FileUrls
from diffuserve.domain.jobs.batch import Batch
from diffuserve.domain.jobs.input_file import CONTENT_TYPE, LINES_CONTENT_TYPE, InputFile
from diffuserve.domain.jobs.job import (
    VIDEO_GENERATE,
    Artifact,
    Job,
    JobEvent,
    JobStatus,
    Phase,
    Progress,
    QueueEstimate,
)
from diffuserve.domain.jobs.prompt import PromptRecord
from diffuserve.domain.jobs.webhook import Delivery, WebhookEndpoint
from diffuserve.domain.resource_base import Page
from diffuserve.domain.resources.batch import BatchResource, BatchResult, BatchUrls
from diffuserve.domain.resources.file import FileResource
from diffuserve.domain.resources.job import (
    ArtifactResource,
    ErrorResource,
    EventResource,
    JobResource,
    JobUrls,
    ProgressResource,
    PromptResource,
    QueueResource,
    ResultResource,
    outputs_among,
)
from diffuserve.domain.resources.safety import FilterResource, FindingResource, VerdictResource
from diffuserve.domain.resources.webhook import DeliveryResource, WebhookEndpointResource
from diffuserve.domain.resources.worker import WorkerReportResource, WorkerResource
from diffuserve.domain.safety import FilterInfo, Verdict
from diffuserve.domain.text.timestamps import to_rfc3339
from diffuserve.domain.workers.worker import Worker
from diffuserve.events.base import EventBus
from diffuserve.jobs.store import JobStore
from diffuserve.telemetry.tracing import trace_id_of

AnyPage = TypeVar("AnyPage", bound=Page)


def _waiting_phase(job: Job) -> Phase | None:
    """Return the phase of a queued job whose latents are finished."""
    return Phase.DECODE if job.is_denoised and job.status is JobStatus.QUEUED else None


class JobSerializer:
    """Adds to a stored job its live progress, its place in the queue, and URLs that open its files."""

    def __init__(
        self, store: JobStore, bus: EventBus, on_look: Callable[[str], None], files: FileUrls
    ) -> None:
        """`on_look` hears of each job whose progress a client reads."""
        self._store = store
        self._bus = bus
        self._on_look = on_look
        self._files = files

    async def job(self, job: Job, base_url: str) -> JobResource:
        """Build the resource with the job's place in the queue."""
        return await self._resource(job, base_url, await self._store.jobs.estimate(job))

    async def listed_job(self, job: Job, base_url: str) -> JobResource:
        """Build the resource without a place in the queue, whose estimate reads the whole queue."""
        return await self._resource(job, base_url, None)

    def etag(self, job: Job) -> str:
        """Return a tag that changes with the job and its progress, and before the URLs in it expire."""
        live = self._bus.latest_progress(job.id) or {}
        files = self._files.tag() if job.result else ""
        place = "-".join(str(live.get(name, "")) for name in ("phase", "step", "frames"))
        return f'W/"{job.version}-{place}-{files}"'

    async def batch_result(self, job: Job, base_url: str) -> BatchResult:
        """Build the line of a batch's results for an item that has ended."""
        assert job.custom_id is not None, "every item of a batch has one"
        return BatchResult(
            custom_id=job.custom_id,
            job_id=job.id,
            status=job.status,
            result=await self._result(job, base_url),
            error=_error(job),
        )

    async def artifact_url(self, job: Job, artifact: Artifact, base_url: str) -> str:
        """Return a URL that opens the file without a key."""
        return await self._files.url(job.id, job.lease_token, artifact.name, base_url, artifact.sha256)

    def _live(self, job: Job) -> Mapping[str, Any]:
        """Return the newest live progress of a running job, and have it reported more often for a while."""
        self._on_look(job.id)
        return self._bus.latest_progress(job.id) or {}

    async def _resource(self, job: Job, base_url: str, estimate: QueueEstimate | None) -> JobResource:
        live = self._live(job) if job.status.is_leased else {}
        return JobResource(
            id=job.id,
            kind=job.kind,
            model=job.model,
            status=job.status,
            phase=live.get("phase") or job.phase or _waiting_phase(job),
            progress=_progress(job, live),
            queue=None if estimate is None else QueueResource(**vars(estimate)),
            input=_as_asked(job.input),
            asked=job.asked,
            prompt=None if job.prompt is None else _prompt(job.prompt),
            result=await self._result(job, base_url),
            error=_error(job),
            attempt=job.attempt,
            priority=job.band,
            urls=_job_urls(job, base_url),
            created_at=to_rfc3339(job.created_at),
            started_at=to_rfc3339(job.started_at),
            finished_at=to_rfc3339(job.finished_at),
            deadline=to_rfc3339(job.finish_by),
            best_effort=job.best_effort,
            exact=job.exact,
            requested_model=job.requested_model,
            fallback_model=None if job.fallback is None else job.fallback.model,
            max_attempts=job.max_attempts,
            worker_hint=job.worker_hint,
            store=not job.forget_delivered,
            kept_until=to_rfc3339(self._store.config.kept_until(job)),
            metadata=job.metadata,
            batch_id=job.batch_id,
            custom_id=job.custom_id,
            tenant_id=job.tenant_id,
            worker_id=job.worker_id,
            cost_seconds=job.cost_seconds,
            actual_seconds=job.actual_seconds,
            trace_id=trace_id_of(job.traceparent),
        )

    async def _result(self, job: Job, base_url: str) -> ResultResource | None:
        if job.result is None:
            return None
        artifacts = [
            ArtifactResource(**vars(artifact), url=await self.artifact_url(job, artifact, base_url))
            for artifact in job.result.artifacts
        ]
        return ResultResource(**vars(job.result) | {"artifacts": tuple(artifacts)})


def page_of(kind: type[AnyPage], resources: Sequence[Any], has_more: bool) -> AnyPage:
    """Build a page; `next` is the id of its last resource if more follow."""
    return kind(data=tuple(resources), has_more=has_more, next=resources[-1].id if has_more else None)


def batch_resource(batch: Batch, base_url: str) -> BatchResource:
    """Build a batch's resource."""
    url = f"{base_url}/v1/batches/{batch.id}"
    counts = {
        status.value: batch.counts.get(status, 0) for status in JobStatus
    }  # orjson takes plain keys only
    return BatchResource(
        id=batch.id,
        status=batch.status,
        counts=cast(Mapping[JobStatus, int], counts),
        num_items=batch.num_items,
        metadata=batch.metadata,
        urls=BatchUrls(self=url, cancel=f"{url}/cancel", results=f"{url}/results"),
        created_at=to_rfc3339(batch.created_at),
        finished_at=to_rfc3339(batch.finished_at),
    )


def event_resource(event: JobEvent) -> EventResource:
    """Build the resource of a stored event."""
    return EventResource(
        job_id=event.job_id,
        seq=event.seq,
        type=event.type,
        data=event.data,
        created_at=to_rfc3339(event.created_at),
    )


def live_event_resource(job_id: str, message: Mapping[str, Any]) -> EventResource:
    """Build the resource of a progress or preview message, which is not stored."""
    content = {name: value for name, value in message.items() if name != "type"}
    return EventResource(job_id=job_id, seq=None, type=message["type"], data=content, created_at=None)


def webhook_endpoint_resource(endpoint: WebhookEndpoint) -> WebhookEndpointResource:
    """Build a webhook endpoint's resource."""
    return WebhookEndpointResource(
        id=endpoint.id,
        url=endpoint.url,
        is_disabled=endpoint.disabled_at is not None,
        created_at=to_rfc3339(endpoint.created_at),
    )


def delivery_resource(delivery: Delivery) -> DeliveryResource:
    """Build a delivery's resource."""
    return DeliveryResource(
        id=delivery.id,
        type=delivery.type,
        subject_id=delivery.subject_id,
        status=delivery.status,
        num_attempts=delivery.num_attempts,
        created_at=to_rfc3339(delivery.created_at),
        next_attempt_at=to_rfc3339(delivery.next_at),
        last_attempt_at=to_rfc3339(delivery.last_attempt_at),
        last_status=delivery.last_status,
        last_error=delivery.last_error,
    )


def worker_resource(worker: Worker) -> WorkerResource:
    """Build a worker's resource."""
    return WorkerResource(**worker_fields(worker))


def worker_fields(worker: Worker) -> dict[str, Any]:
    """Return the fields of a worker's resource."""
    return vars(worker) | {
        "report": WorkerReportResource(**vars(worker.report)),
        "registered_at": to_rfc3339(worker.registered_at),
        "heartbeat_at": to_rfc3339(worker.heartbeat_at),
    }


def file_resource(file: InputFile) -> FileResource:
    """Build a file's resource."""
    return FileResource(
        id=file.id,
        purpose=file.purpose,
        filename=file.filename,
        content_type=CONTENT_TYPE if file.is_image else LINES_CONTENT_TYPE,
        bytes=file.size_bytes,
        width=file.width or None,
        height=file.height or None,
        sha256=file.sha256,
        verdict=None if file.verdict is None else _verdict(file.verdict),
        created_at=int(file.created_at),
        expires_at=int(file.expires_at),
    )


def filter_resource(info: FilterInfo | None) -> FilterResource | None:
    """Build a filter's resource; `None` stays `None`."""
    return None if info is None else FilterResource(**vars(info))


def output_of(job: Job, index: int) -> Artifact | None:
    """Return image, clip or sound `index` of a finished job, `None` if it has no such one."""
    artifacts = job.result.artifacts if job.result else ()
    return next((output for output in outputs_among(artifacts) if output.index == index), None)


def _progress(job: Job, live: Mapping[str, Any]) -> ProgressResource:
    total, num_frames = int(job.input.get("num_inference_steps") or 0), _num_frames(job)
    if job.status is JobStatus.SUCCEEDED:
        return ProgressResource(
            step=total, total=total, fraction=1.0, frames=num_frames, num_frames=num_frames
        )
    if live and job.status.is_leased:
        step, total, fraction = live["step"], live["total"], live["fraction"]
        frames = min(live.get("frames", 0), num_frames)
        return ProgressResource(
            step=step, total=total, fraction=fraction, frames=frames, num_frames=num_frames
        )
    stored = job.progress or Progress(0, total)
    return ProgressResource(
        step=stored.step, total=stored.total, fraction=stored.fraction, num_frames=num_frames
    )


def _num_frames(job: Job) -> int:
    """Return the frames of all clips that a job asks for; 0 for images."""
    if job.kind != VIDEO_GENERATE:
        return 0
    return int(job.input.get("num_frames") or 0) * int(job.input.get("num_images") or 1)


def _prompt(record: PromptRecord) -> PromptResource:
    return PromptResource(
        original=record.original,
        verdict=_verdict(record.verdict),
        filter=filter_resource(record.filter),
        expansion=record.expansion,
        reason=record.reason,
    )


def _verdict(verdict: Verdict) -> VerdictResource:
    findings = tuple(
        FindingResource(
            category=finding.category, action=finding.action, source=finding.source, score=finding.score
        )
        for finding in verdict.findings
    )
    return VerdictResource(action=verdict.action, findings=findings)


def _error(job: Job) -> ErrorResource | None:
    return None if job.error is None else ErrorResource(**vars(job.error))


def _job_urls(job: Job, base_url: str) -> JobUrls:
    url = f"{base_url}/v1/jobs/{job.id}"
    return JobUrls(
        self=url,
        cancel=f"{url}/cancel",
        events=f"{url}/events",
        result=f"{url}/result",
        live=f"{url}/live" if job.live else None,
    )


def _as_asked(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job's input as clients may send it again: adapters by their names, without digests."""
    adapters = values.get("adapters")
    if not adapters:
        return values
    shown = [{name: use[name] for name in use if name != "digest"} for use in adapters]
    return {**values, "adapters": shown}
