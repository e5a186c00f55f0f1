"""Jobs as the API's JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from diffuserve.api.cache import Cache
from diffuserve.api.files.urls import FileUrls
from diffuserve.api.responses import rfc3339
from diffuserve.domain.batch import Batch
from diffuserve.domain.job import Artifact, Band, Job, JobEvent, JobStatus, QueueEstimate
from diffuserve.events.base import EventBus
from diffuserve.jobs.store import JobStore

Document = dict[str, Any]
_ESTIMATE_SECONDS = 0.25


class Documents:
    """Adds to a stored job what only this moment knows: progress, its place, URLs that open its files."""

    def __init__(self, store: JobStore, bus: EventBus, files: FileUrls) -> None:
        self._store = store
        self._bus = bus
        self._files = files
        self._last_estimates: Cache[tuple[str, str, Band], QueueEstimate] = Cache(_ESTIMATE_SECONDS)

    async def job(self, job: Job, base_url: str) -> Document:
        return await self._document(job, base_url, await self._store.jobs.estimate(job))

    async def new_job(self, job: Job, base_url: str) -> Document:
        """For a job that stands at the end of its lane: what was said there a moment ago still holds."""
        lane = (job.tenant_id, job.model, job.band)
        estimate = self._last_estimates.find(lane)
        if estimate is None and (estimate := await self._store.jobs.estimate(job)) is not None:
            self._last_estimates.keep(lane, estimate)
        return await self._document(job, base_url, estimate if job.status is JobStatus.QUEUED else None)

    async def listed_job(self, job: Job, base_url: str) -> Document:
        """Without its place in the queue, which takes a look at the whole queue for each."""
        return await self._document(job, base_url, None)

    def tag(self, job: Job) -> str:
        """Changes with whatever a reader may want to hear of, and before the URLs given out expire."""
        live = self._bus.latest_progress(job.id) or {}
        files = self._files.tag() if job.result else ""
        return f'W/"{job.version}-{live.get("phase", "")}-{live.get("step", "")}-{files}"'

    async def _document(self, job: Job, base_url: str, estimate: QueueEstimate | None) -> Document:
        live = (self._bus.latest_progress(job.id) if job.status.is_leased else None) or {}
        return {
            "id": job.id,
            "kind": job.kind,
            "model": job.model,
            "status": job.status,
            "phase": live.get("phase") or job.phase,
            "progress": _progress(job, live),
            "queue": None if estimate is None else asdict(estimate),
            "input": job.input,
            "prompt": None if job.prompt is None else job.prompt.to_dict(),
            "result": await self._result(job, base_url),
            "error": None if job.error is None else asdict(job.error),
            "attempt": job.attempt,
            "priority": job.band,
            "urls": _urls(job.id, base_url),
            "created_at": rfc3339(job.created_at),
            "started_at": rfc3339(job.started_at),
            "finished_at": rfc3339(job.finished_at),
            "metadata": job.metadata,
            "batch_id": job.batch_id,
            "custom_id": job.custom_id,
        }

    async def batch_line(self, job: Job, base_url: str) -> Document:
        """Of an item that has ended, what a batch's results say."""
        return {
            "custom_id": job.custom_id,
            "job_id": job.id,
            "status": job.status,
            "result": await self._result(job, base_url),
            "error": None if job.error is None else asdict(job.error),
        }

    async def artifact_url(self, job: Job, artifact: Artifact, base_url: str) -> str:
        return await self._files.url(job.id, job.lease_token, artifact.name, base_url)

    async def _result(self, job: Job, base_url: str) -> Document | None:
        if job.result is None:
            return None
        artifacts = [
            asdict(artifact) | {"url": await self.artifact_url(job, artifact, base_url)}
            for artifact in job.result.artifacts
        ]
        return {
            "artifacts": artifacts,
            "input": job.result.input,
            "timings": job.result.timings,
            "warnings": job.result.warnings,
            "safety": job.result.safety,
        }


def batch_document(batch: Batch, base_url: str) -> Document:
    here = f"{base_url}/v1/batches/{batch.id}"
    return {
        "id": batch.id,
        "status": batch.status,
        "counts": {status.value: batch.counts.get(status, 0) for status in JobStatus},
        "num_items": batch.num_items,
        "metadata": batch.metadata,
        "urls": {"self": here, "cancel": f"{here}/cancel", "results": f"{here}/results"},
        "created_at": rfc3339(batch.created_at),
        "finished_at": rfc3339(batch.finished_at),
    }


def event_document(event: JobEvent) -> Document:
    """The envelope of a stored event."""
    return {
        "job_id": event.job_id,
        "seq": event.seq,
        "type": event.type,
        "data": event.data,
        "created_at": rfc3339(event.created_at),
    }


def message_document(job_id: str, message: Mapping[str, Any]) -> Document:
    """The same envelope around what is not stored, hence without `seq`."""
    content = {name: value for name, value in message.items() if name != "type"}
    return {"job_id": job_id, "seq": None, "type": message["type"], "data": content, "created_at": None}


def image(job: Job, index: int = 0) -> Artifact | None:
    """Image `index` of a finished job, not its thumbnail."""
    artifacts = job.result.artifacts if job.result else ()
    return next((one for one in artifacts if one.index == index and one.role == "image"), None)


def _progress(job: Job, live: Mapping[str, Any]) -> Document:
    total = int(job.input.get("num_inference_steps") or 0)
    if job.status is JobStatus.SUCCEEDED:
        return {"step": total, "total": total, "fraction": 1.0}
    if live and job.status.is_leased:
        return {name: live[name] for name in ("step", "total", "fraction")}
    if job.progress is not None:
        return {"step": job.progress.step, "total": job.progress.total, "fraction": job.progress.fraction}
    return {"step": 0, "total": total, "fraction": 0.0}


def _urls(job_id: str, base_url: str) -> Document:
    here = f"{base_url}/v1/jobs/{job_id}"
    return {"self": here, "cancel": f"{here}/cancel", "events": f"{here}/events", "result": f"{here}/result"}
