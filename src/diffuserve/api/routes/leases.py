"""What workers say of the jobs that they hold. Every write carries the lease's token."""

import asyncio
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from starlette.requests import ClientDisconnect

from diffuserve.api.auth.dependencies import WorkerOnly
from diffuserve.api.path_params import FileName, JobId, known_token
from diffuserve.api.responses import json_response
from diffuserve.api.schemas import FileShape, UploadUrl
from diffuserve.api.services import Services, ServicesOf
from diffuserve.api.worker_validation import check_completion, check_failure
from diffuserve.domain.errors import ArtifactNotFound, LeaseLost, UploadMissing
from diffuserve.domain.job import Artifact, Progress
from diffuserve.domain.worker import Completion, Failure, LeaseOutcome, ProgressReport, Release
from diffuserve.events.base import EventBus, job_topic
from diffuserve.storage.base import ArtifactStore

router = APIRouter(prefix="/v1/leases/{job_id}", tags=["leases"])

_BINARY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("/events", summary="Report progress", status_code=204)
async def report_progress(
    job_id: JobId, body: ProgressReport, services: ServicesOf, caller: WorkerOnly
) -> Response:
    """WebhookNotice to whoever watches, and not stored."""
    await services.store.leases.check(job_id, known_token(job_id, body.lease_token))
    _publish(services.bus, job_id, body)
    return Response(status_code=204)


@router.post("/complete", summary="Finish a job", response_model=LeaseOutcome)
async def complete(job_id: JobId, body: Completion, services: ServicesOf, caller: WorkerOnly) -> Response:
    """May be repeated with the token that finished the job. Each file of the result must be stored."""
    known_token(job_id, body.lease_token)
    await _check_files(services, job_id, check_completion(body))
    status = await services.store.leases.complete(job_id, body)
    await services.times.run_ended(job_id, status, body.actual_seconds)
    return json_response(LeaseOutcome(job_id, status))


@router.post("/fail", summary="Give an attempt up", response_model=LeaseOutcome)
async def fail(job_id: JobId, body: Failure, services: ServicesOf, caller: WorkerOnly) -> Response:
    """The job fails, or is queued for another attempt."""
    known_token(job_id, body.lease_token)
    status = await services.store.leases.fail(job_id, check_failure(body))
    await services.times.run_ended(job_id, status, body.actual_seconds)
    return json_response(LeaseOutcome(job_id, status))


@router.post("/release", summary="Hand a job back", response_model=LeaseOutcome)
async def release(job_id: JobId, body: Release, services: ServicesOf, caller: WorkerOnly) -> Response:
    known_token(job_id, body.lease_token)
    status = await services.store.leases.release(job_id, body)
    await services.times.run_ended(job_id, status)
    return json_response(LeaseOutcome(job_id, status))


@router.put(
    "/files/{name}",
    summary="Upload a file",
    status_code=201,
    response_model=FileShape,
    openapi_extra=_BINARY,
)
async def put_file(
    job_id: JobId,
    name: FileName,
    request: Request,
    services: ServicesOf,
    caller: WorkerOnly,
    lease_token: Annotated[int, Header()],
) -> Response:
    """The body is the file. It counts once the job is completed with the same token."""
    await services.store.leases.check(job_id, known_token(job_id, lease_token))
    key = f"{job_id}/{lease_token}/{name}"
    try:
        stored = await services.artifacts.put(key, request.stream(), services.config.max_file_bytes)
    except ClientDisconnect:
        return Response(status_code=400)  # nobody reads it
    return json_response({"name": name, "size_bytes": stored.size_bytes, "sha256": stored.sha256}, 201)


@router.post("/files/{name}/upload-url", summary="Ask where to upload a file", response_model=UploadUrl)
async def upload_url(
    job_id: JobId,
    name: FileName,
    services: ServicesOf,
    caller: WorkerOnly,
    lease_token: Annotated[int, Header()],
) -> Response:
    """A URL of the store that takes the file by PUT for a while; `null` where it is uploaded to us."""
    await services.store.leases.check(job_id, known_token(job_id, lease_token))
    key = f"{job_id}/{lease_token}/{name}"
    return json_response(
        {"url": await services.artifacts.upload_url(key, services.config.upload_url_seconds)}
    )


async def _check_files(services: Services, job_id: str, completion: Completion) -> None:
    """Raises `UploadMissing`. Without a live lease it is the store's to say what the completion is."""
    with suppress(LeaseLost):
        await services.store.leases.check(job_id, completion.lease_token)
        folder = f"{job_id}/{completion.lease_token}"
        artifacts = completion.result.artifacts
        await asyncio.gather(*(_check_file(services.artifacts, folder, one) for one in artifacts))


async def _check_file(store: ArtifactStore, folder: str, artifact: Artifact) -> None:
    try:
        size = await store.size(f"{folder}/{artifact.name}")
    except ArtifactNotFound as error:
        raise UploadMissing(f"{artifact.name} is not stored; upload it again") from error
    if size != artifact.size_bytes:
        raise UploadMissing(
            f"{artifact.name} has {size:,} bytes in place of {artifact.size_bytes:,}; upload it again"
        )


def _publish(bus: EventBus, job_id: str, report: ProgressReport) -> None:
    topic = job_topic(job_id)
    if report.preview is not None:
        bus.publish(topic, {"type": "preview", "index": report.preview_index or 0, "b64": report.preview})
    progress = Progress(report.step, report.total)
    bus.publish(
        topic,
        {
            "type": "progress",
            "phase": report.phase,
            "step": report.step,
            "total": report.total,
            "fraction": progress.fraction,
        },
    )
