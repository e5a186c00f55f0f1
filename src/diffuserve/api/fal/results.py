"""States and results of jobs in the form of fal's queue."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffuserve.api.fal.applications import handle_of
from diffuserve.api.files.job_files import JobFiles
from diffuserve.api.following.awaited_jobs import failure_problem
from diffuserve.api.http.problem import Problem
from diffuserve.api.resources.serializers import JobSerializer
from diffuserve.domain.jobs.job import Artifact, Job, JobEvent, JobStatus
from diffuserve.domain.resources.job import images_among, sounds_among, videos_among
from diffuserve.domain.text.timestamps import to_rfc3339
from diffuserve.events.base import EventBus
from diffuserve.jobs.store import JobStore

QUEUE, RUN = "/fal/queue", "/fal/run"
FORM = "fal"
"""Name of the form of webhook messages that these clients read."""
_ERROR_TYPES = {
    "prompt_blocked": "content_policy_violation",
    "image_blocked": "content_policy_violation",
    "output_blocked": "content_policy_violation",
    "start_timeout": "request_timeout",
}
_STATUSES = {JobStatus.CANCELED: 410, JobStatus.EXPIRED: 504}  # its clients retry 409
_LEVELS = {"failed": "ERROR", "requeued": "WARN", "expired": "ERROR"}


def error_type(code: str) -> str:
    """Return fal's name of the kind of an error."""
    return _ERROR_TYPES.get(code, code)


@dataclass(frozen=True)
class RequestUrls:
    """URLs of a request, below those of its application."""

    base: str

    @classmethod
    def of(cls, base_url: str, application: str, job_id: str) -> "RequestUrls":
        return cls(f"{base_url}{QUEUE}/{handle_of(application)}/requests/{job_id}")

    def to_dict(self) -> dict[str, str]:
        """Return the URLs by the names that fal's clients read."""
        return {
            "response_url": self.base,
            "status_url": f"{self.base}/status",
            "cancel_url": f"{self.base}/cancel",
        }


@dataclass(frozen=True)
class FalSerializer:
    """Builds what fal's clients read of a job."""

    store: JobStore
    bus: EventBus
    serializer: JobSerializer
    files: JobFiles

    async def status(self, job: Job, urls: RequestUrls, with_logs: bool) -> dict[str, Any]:
        """Return the state of a request; a failed one is completed, with its error."""
        logs = await self._logs(job) if with_logs else None
        common = {"request_id": job.id, "logs": logs, **urls.to_dict()}
        if job.status is JobStatus.QUEUED:
            estimate = await self.store.jobs.estimate(job)
            return {"status": "IN_QUEUE", "queue_position": estimate.ahead if estimate else 0, **common}
        if not job.status.is_final:
            return {"status": "IN_PROGRESS", **common}
        return {"status": "COMPLETED", "metrics": _metrics(job), **common, **_error(job)}

    async def message(self, job: Job, base_url: str) -> dict[str, Any]:
        """Return what a webhook receives at the end of a job: its output by URLs, or why there is none."""
        ids = {"request_id": job.id, "gateway_request_id": job.id}
        if job.status is JobStatus.SUCCEEDED:
            return {**ids, "status": "OK", "payload": await self.result(job, base_url, inline=False)}
        problem = failure(job)
        payload = {"detail": problem.detail, "error_type": error_type(problem.code)}
        return {**ids, "status": "ERROR", "error": problem.detail, "payload": payload}

    async def result(self, job: Job, base_url: str, inline: bool) -> dict[str, Any]:
        """Return the output of a job that succeeded: its images, clip or sound, as URLs or data URIs."""
        artifacts = job.result.artifacts if job.result else ()
        common = {
            "prompt": str(job.input.get("prompt", "")),
            "seed": job.input.get("seed"),
            "diffuserve_warnings": list(job.result.warnings) if job.result else [],
            "timings": {"inference": job.actual_seconds, **(job.result.timings if job.result else {})},
        }
        for name, found in (("video", videos_among(artifacts)), ("audio", sounds_among(artifacts))):
            if found:
                return {name: await self._file(job, found[0], base_url, inline), **common}
        images = images_among(artifacts)
        shown = [await self._file(job, image, base_url, inline) for image in images]
        return {"images": shown, "has_nsfw_concepts": [False] * len(images), **common}

    async def _file(self, job: Job, artifact: Artifact, base_url: str, inline: bool) -> Mapping[str, Any]:
        if inline:
            content = base64.b64encode(await self.files.content(job, artifact)).decode()
            url = f"data:{artifact.content_type};base64,{content}"
        else:
            url = await self.serializer.artifact_url(job, artifact, base_url)
        sides = {"width": artifact.width, "height": artifact.height}
        return {
            "url": url,
            "content_type": artifact.content_type,
            "file_name": artifact.name,
            "file_size": artifact.size_bytes,
            **{name: side for name, side in sides.items() if side is not None},
        }

    async def _logs(self, job: Job) -> Sequence[Mapping[str, Any]]:
        """Return a line for each stored event, and one for the steps that are done."""
        lines = [_line(event) for event in await self.store.jobs.events_after(job.id)]
        live = None if job.status.is_final else self.bus.latest_progress(job.id)
        if live is not None and live.get("step") is not None:
            lines.append(lines[-1] | {"message": f"step {live['step']} of {live.get('total')}"})
        return lines


def is_inline(job: Job) -> bool:
    """Return whether the request asked for its files within the result."""
    asked = job.metadata.get("fal")
    return isinstance(asked, Mapping) and asked.get("sync_mode") is True


def failure(job: Job) -> Problem:
    """Return why a job that has ended has no output, by a status that fal's clients do not retry."""
    problem = failure_problem(job)
    status = 422 if problem.status == 400 else _STATUSES.get(job.status, problem.status)
    return Problem(status=status, code=problem.code, detail=problem.detail)


def _error(job: Job) -> Mapping[str, str]:
    if job.status is JobStatus.SUCCEEDED:
        return {}
    problem = failure(job)
    return {"error": problem.detail, "error_type": error_type(problem.code)}


def _metrics(job: Job) -> Mapping[str, float | None]:
    return {"inference_time": job.actual_seconds}


def _line(event: JobEvent) -> dict[str, Any]:
    details = ", ".join(f"{name} {value}" for name, value in event.data.items())
    return {
        "message": f"{event.type}: {details}" if details else event.type,
        "level": _LEVELS.get(event.type, "INFO"),
        "source": "diffuserve",
        "timestamp": to_rfc3339(event.created_at),
    }
