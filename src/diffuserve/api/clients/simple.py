"""Flat API for scripts, over the same jobs."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Response, WebSocket
from pydantic import Field

from diffuserve.api.auth.dependencies import BaseUrl, base_url_of
from diffuserve.api.auth.quota import ClientCaller, SubmittingCaller, websocket_caller
from diffuserve.api.auth.waits import WaitSlots
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.door.origin import Origin
from diffuserve.api.door.sent_messages import send_all
from diffuserve.api.following.job_watcher import JobWatcher
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.path_params import JobId
from diffuserve.api.http.responses import json_response
from diffuserve.api.resources.serializers import JobSerializer
from diffuserve.api.submit.file_formats import FILE_FORMAT, FileFormat
from diffuserve.api.submit.request_bodies import (
    GenerationInput,
    Kind,
    ModelName,
    NewJobBody,
    OptionsBody,
    Prompt,
    input_values,
    takes_fields,
    takes_options,
)
from diffuserve.api.submit.submission import Submission, Submissions, renamed_fields
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.domain.requests.params import FIELDS
from diffuserve.domain.requests.request_fields import Dialect
from diffuserve.domain.resource_base import Resource
from diffuserve.jobs.store import JobStore
from diffuserve.media.sound_file import SOUND_FORMATS

router = APIRouter(tags=["simple"], route_class=JsonRoute)


@dataclass(frozen=True)
class SimpleParts:
    """Parts that these routes use."""

    store: JobStore
    submissions: Submissions
    job_watcher: JobWatcher
    serializer: JobSerializer
    slots: WaitSlots


Used = Annotated[SimpleParts, Depends(Uses(SimpleParts))]


FlatStatus = Literal["pending", "processing", "completed", "failed", "cancelled"]
_STATUSES: dict[JobStatus, FlatStatus] = {
    JobStatus.QUEUED: "pending",
    JobStatus.RUNNING: "processing",
    JobStatus.CANCELING: "processing",
    JobStatus.SUCCEEDED: "completed",
    JobStatus.FAILED: "failed",
    JobStatus.EXPIRED: "failed",
    JobStatus.CANCELED: "cancelled",
}
_FIELDS = {name: declared.name_in(Dialect.FLAT) for name, declared in FIELDS.items()}


@takes_options()
@takes_fields(Dialect.FLAT)
class GenerateBody(OptionsBody):
    """Parameters of an image, a clip or a sound. A field that is left out takes the model's default."""

    prompt: Prompt
    kind: Kind | None = Field(
        default=None,
        description="By default a sound where the format is one of sounds, a clip where a length or a last "
        "frame is given, and else an image.",
    )
    output_format: FileFormat | None = FILE_FORMAT
    model: ModelName | None = None

    def job(self) -> NewJobBody:
        """Build the body of the equivalent job."""
        said = input_values(self, Dialect.FLAT)
        return NewJobBody.model_construct(
            kind=self.kind or _usual_kind(said, self.output_format),
            model=self.model,
            input=GenerationInput.model_construct(prompt=self.prompt, **said),
            output_format=self.output_format,
            **vars(self.options),
        )


def _usual_kind(said: Mapping[str, Any], output_format: str | None) -> Kind:
    if output_format in SOUND_FORMATS:
        return "audio.generate"
    has_length = said["seconds"] is not None or (said["num_frames"] or 1) > 1
    return "video.generate" if has_length or said["last_image"] is not None else "image.generate"


@dataclass(frozen=True, kw_only=True)
class SubmittedFlatJob(Resource):
    """Job that was just submitted."""

    job_id: str
    status: str
    queue_position: int | None = field(metadata={"description": "1 is next."})
    estimated_time: float | None = field(metadata={"description": "Seconds until it is likely finished."})
    adjusted: Mapping[str, int] | None = field(
        metadata={
            "description": "The nearest allowed values in place of those asked for, of `width`, `height` and "
            "`steps`; null if none was replaced."
        }
    )


@dataclass(frozen=True, kw_only=True)
class FlatJob(Resource):
    """Job without nested fields."""

    job_id: str
    status: FlatStatus
    progress: float = field(metadata={"description": "In 0…1."})
    image_url: str | None = field(metadata={"description": "Of a clip its poster, a frame from its middle."})
    video_url: str | None
    audio_url: str | None
    error: str | None


@router.post(
    "/generate",
    summary="Generate an image, a clip or a sound",
    status_code=202,
    response_model=SubmittedFlatJob,
)
async def generate(body: GenerateBody, parts: Used, caller: SubmittingCaller, origin: Origin) -> Response:
    """Queue a job of one image, clip or sound."""
    with renamed_fields(lambda name: _FIELDS.get(name, name)):
        submission = Submission(caller.tenant_id, body.job(), origin.base_url, origin.idempotency_key)
        job = await parts.submissions.submit(submission)
    queue = (await parts.serializer.job(job, origin.base_url)).queue
    submitted = SubmittedFlatJob(
        job_id=job.id,
        status=_STATUSES[job.status],
        queue_position=None if queue is None else queue.ahead + 1,
        estimated_time=None if queue is None else queue.eta_s_high,
        adjusted={_FIELDS.get(name, name): job.input[name] for name in job.asked} if job.asked else None,
    )
    return json_response(submitted, 202)


@router.get("/jobs/{job_id}", summary="Get a job, flat", response_model=FlatJob)
async def get_flat_job(job_id: JobId, parts: Used, caller: ClientCaller, base_url: BaseUrl) -> Response:
    """Get the status, the progress and the image, clip or sound of a job."""
    job = await parts.store.jobs.get(job_id, caller.scope)
    return json_response(await _flat_job(parts, job, base_url))


@router.delete("/jobs/{job_id}", summary="Cancel a job, flat", response_model=FlatJob)
async def cancel_flat_job(job_id: JobId, parts: Used, caller: ClientCaller, base_url: BaseUrl) -> Response:
    """Cancel a job. A job in `processing` stays so until its worker has released it."""
    job = await parts.store.jobs.cancel(job_id, caller.scope)
    return json_response(await _flat_job(parts, job, base_url))


@router.websocket("/ws/jobs/{job_id}")
async def watch_job(websocket: WebSocket, job_id: JobId, parts: Used) -> None:
    """Send the job as `GET /jobs/{job_id}` returns it, at every change; close with 1000 after the last."""
    caller = await websocket_caller(websocket)
    job = await parts.store.jobs.get(job_id, caller.scope)
    async with parts.slots.hold(caller):
        await send_all(websocket, _changes(parts, job, base_url_of(websocket)))


async def _changes(parts: SimpleParts, job: Job, base_url: str) -> AsyncGenerator[str | bytes]:
    last: FlatJob | None = None
    async with aclosing(parts.job_watcher.watch(job)) as updates:
        async for update in updates:
            job = update if isinstance(update, Job) else job
            flat = await _flat_job(parts, job, base_url)
            if flat != last:
                last = flat
                yield orjson.dumps(flat).decode()


async def _flat_job(parts: SimpleParts, job: Job, base_url: str) -> FlatJob:
    resource = await parts.serializer.listed_job(job, base_url)
    artifacts = resource.result.artifacts if resource.result else ()
    files = {artifact.role: artifact.url for artifact in artifacts if artifact.index == 0}
    return FlatJob(
        job_id=job.id,
        status=_STATUSES[job.status],
        progress=resource.progress.fraction,
        image_url=files.get("image") or files.get("poster"),
        video_url=files.get("video"),
        audio_url=files.get("audio"),
        error=_error(job),
    )


def _error(job: Job) -> str | None:
    if job.error is not None:
        return job.error.message
    return (
        "the job waited in the queue for longer than it was allowed to"
        if job.status is JobStatus.EXPIRED
        else None
    )
