"""A flat API for scripts, over the same jobs."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Response, WebSocket
from pydantic import Field

from diffuserve.api.auth.dependencies import BaseUrl, Client, base_url_of, socket_client
from diffuserve.api.auth.quota import Submitter
from diffuserve.api.path_params import JobId
from diffuserve.api.responses import json_response
from diffuserve.api.routes.events import send_all
from diffuserve.api.schemas import (
    AcceptedShape,
    Body,
    FlatJobShape,
    GenerationInput,
    Guidance,
    ModelName,
    NewJobBody,
    Pixels,
    Prompt,
    Seed,
    Steps,
)
from diffuserve.api.serializers import Document
from diffuserve.api.services import Services, ServicesOf
from diffuserve.api.submission import field_names, submit
from diffuserve.domain.job import Job, JobStatus
from diffuserve.domain.params import MAX_PROMPT_CHARACTERS

router = APIRouter(tags=["simple"])

_STATUSES = {
    JobStatus.QUEUED: "pending",
    JobStatus.RUNNING: "processing",
    JobStatus.CANCELING: "processing",
    JobStatus.SUCCEEDED: "completed",
    JobStatus.FAILED: "failed",
    JobStatus.EXPIRED: "failed",
    JobStatus.CANCELED: "cancelled",
}
_FIELDS = {"num_inference_steps": "steps"}


class GenerateBody(Body):
    """What to draw. What is left out is the model's own default."""

    prompt: Prompt
    negative_prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARACTERS)] = ""
    width: Pixels | None = None
    height: Pixels | None = None
    steps: Steps | None = None
    guidance_scale: Guidance | None = None
    seed: Seed | None = None
    model: ModelName | None = None

    def job(self) -> NewJobBody:
        values = self.model_dump(exclude={"model", "steps"})
        drawing = GenerationInput.model_construct(**values, num_inference_steps=self.steps)
        return NewJobBody.model_construct(model=self.model, input=drawing)


@router.post("/generate", summary="Draw an image", status_code=202, response_model=AcceptedShape)
async def generate(
    body: GenerateBody, services: ServicesOf, caller: Submitter, base_url: BaseUrl
) -> Response:
    with field_names(lambda name: _FIELDS.get(name, name)):
        job = await submit(services, caller, body.job(), base_url)
    queue = (await services.documents.new_job(job, base_url))["queue"]
    return json_response(
        {
            "job_id": job.id,
            "status": _STATUSES[job.status],
            "queue_position": queue and queue["ahead"] + 1,
            "estimated_time": queue and queue["eta_s_high"],
        },
        202,
    )


@router.get("/jobs/{job_id}", summary="Look at a job", response_model=FlatJobShape)
async def look(job_id: JobId, services: ServicesOf, caller: Client, base_url: BaseUrl) -> Response:
    job = await services.store.jobs.get(job_id, caller.scope)
    return json_response(await _flat(services, job, base_url))


@router.delete("/jobs/{job_id}", summary="Cancel a job", response_model=FlatJobShape)
async def cancel_job(job_id: JobId, services: ServicesOf, caller: Client, base_url: BaseUrl) -> Response:
    """A job that is being processed stays so until its worker has let go of it."""
    job = await services.store.jobs.cancel(job_id, caller.scope)
    return json_response(await _flat(services, job, base_url))


@router.websocket("/ws/jobs/{job_id}")
async def follow_job(websocket: WebSocket, job_id: JobId, services: ServicesOf) -> None:
    """The job as `GET /jobs/{job_id}` gives it, at every change; closes with 1000 after the last."""
    caller = await socket_client(websocket)
    await services.store.jobs.get(job_id, caller.scope)
    await send_all(websocket, _changes(services, job_id, base_url_of(services, websocket)))


async def _changes(services: Services, job_id: str, base_url: str) -> AsyncGenerator[Document]:
    job, last = await services.store.jobs.get(job_id), None
    async with aclosing(services.follower.follow(job_id)) as looks:
        async for news in looks:
            job = news if isinstance(news, Job) else job
            document = await _flat(services, job, base_url)
            if document != last:
                last = document
                yield document


async def _flat(services: Services, job: Job, base_url: str) -> dict[str, Any]:
    document = await services.documents.listed_job(job, base_url)
    artifacts = (document["result"] or {}).get("artifacts", ())
    return {
        "job_id": job.id,
        "status": _STATUSES[job.status],
        "progress": document["progress"]["fraction"],
        "image_url": next((one["url"] for one in artifacts if one["role"] == "image"), None),
        "error": _error(job),
    }


def _error(job: Job) -> str | None:
    if job.error is not None:
        return job.error.message
    return "the job waited longer than it was allowed to" if job.status is JobStatus.EXPIRED else None
