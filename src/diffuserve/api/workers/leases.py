"""Reports of workers on the jobs that they hold. Every write carries the lease's token."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Header, Path, Request, Response
from fastapi.responses import StreamingResponse

from diffuserve.api.auth.dependencies import WorkerCaller, key_of
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.path_params import FileId, FileName, JobId, checked_token
from diffuserve.api.http.responses import json_response
from diffuserve.api.services import Services, ServicesDep
from diffuserve.api.workers.leased_files import (
    ANY_TYPE,
    BINARY,
    check_file,
    content_of,
    contents_of,
    store_body,
    stored_body,
    upload_url_of,
)
from diffuserve.api.workers.progress import publish_progress
from diffuserve.api.workers.worker_validation import (
    check_completion,
    check_failure,
    check_hand_over,
    check_release,
)
from diffuserve.domain.errors import FileNotKnown, LeaseLost
from diffuserve.domain.jobs.checkpoint import CHECKPOINT_ID, StoredCheckpoint
from diffuserve.domain.jobs.input_file import CONTENT_TYPE, InputFile
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.jobs.progress_report import ProgressReport
from diffuserve.domain.workers.worker import (
    LATENTS_ID,
    LATENTS_NAME,
    Completion,
    Failure,
    HandOver,
    LeasedFile,
    LeasedFiles,
    LeaseOutcome,
    Release,
    ReleaseCause,
    StoredFile,
    StoredLatents,
    UploadUrl,
)
from diffuserve.events.base import job_topic
from diffuserve.storage.base import checkpoint_key, input_key, latents_key
from diffuserve.storage.live_parts import MAX_PARTS, live_folder, live_key

router = APIRouter(prefix="/v1/leases/{job_id}", tags=["leases"], route_class=JsonRoute)


@router.post("/events", summary="Report progress", status_code=204)
async def report_progress(
    job_id: JobId, body: ProgressReport, services: ServicesDep, caller: WorkerCaller
) -> Response:
    """Publish progress and previews to clients that watch the job; they are not stored."""
    await services.store.leases.check(job_id, checked_token(job_id, body.lease_token), key_of(caller))
    publish_progress(services.bus, job_id, body)
    return Response(status_code=204)


@router.post("/complete", summary="Finish a job", response_model=LeaseOutcome)
async def complete(job_id: JobId, body: Completion, services: ServicesDep, caller: WorkerCaller) -> Response:
    """Complete a job, each of whose files is stored or sent along. Safe to repeat with the same token."""
    checked_token(job_id, body.lease_token)
    await _store_files(services, job_id, check_completion(body), key_of(caller))
    status = await services.store.leases.complete(job_id, body, key_of(caller))
    await services.job_metrics.record_run_end(job_id, status, body.actual_seconds)
    if status is JobStatus.SUCCEEDED:
        services.metrics.observe_phases(body.result.timings)
    return json_response(LeaseOutcome(job_id, status))


@router.post("/hand-over", summary="End the first phase of a job", response_model=LeaseOutcome)
async def hand_over(job_id: JobId, body: HandOver, services: ServicesDep, caller: WorkerCaller) -> Response:
    """Queue a job to be decoded; its finished latents must be stored. Safe to repeat with the same token."""
    checked_token(job_id, body.lease_token)
    await _check_latents(services, job_id, check_hand_over(body), key_of(caller))
    status = await services.store.leases.hand_over(job_id, body, key_of(caller))
    await services.job_metrics.record_run_end(job_id, status, body.actual_seconds, useful=JobStatus.QUEUED)
    return json_response(LeaseOutcome(job_id, status))


@router.post("/fail", summary="Report a failed attempt", response_model=LeaseOutcome)
async def fail(job_id: JobId, body: Failure, services: ServicesDep, caller: WorkerCaller) -> Response:
    """Report an error, after which the job fails or is queued for another attempt."""
    checked_token(job_id, body.lease_token)
    status = await services.store.leases.fail(job_id, check_failure(body), key_of(caller))
    await services.job_metrics.record_run_end(job_id, status, body.actual_seconds)
    return json_response(LeaseOutcome(job_id, status))


@router.post("/release", summary="Release a job", response_model=LeaseOutcome)
async def release(job_id: JobId, body: Release, services: ServicesDep, caller: WorkerCaller) -> Response:
    """Return a job to the queue without an outcome."""
    checked_token(job_id, body.lease_token)
    status = await services.store.leases.release(job_id, check_release(body), key_of(caller))
    await services.job_metrics.record_run_end(job_id, status)
    if body.cause is ReleaseCause.PREEMPTED:
        services.metrics.preempted.inc()
    elif body.cause is ReleaseCause.INTERRUPTED:
        services.metrics.interrupted.inc()
    return json_response(LeaseOutcome(job_id, status))


@router.put(
    "/files/{name}",
    summary="Upload a file",
    status_code=201,
    response_model=StoredFile,
    openapi_extra=BINARY,
)
async def put_file(
    job_id: JobId,
    name: FileName,
    request: Request,
    services: ServicesDep,
    caller: WorkerCaller,
    lease_token: Annotated[int, Header()],
) -> Response:
    """Store the body as a file of the job; clients see it once the job is completed with the same token."""
    await services.store.leases.check(job_id, checked_token(job_id, lease_token), key_of(caller))
    return await stored_body(services, request, f"{job_id}/{lease_token}/{name}")


@router.post("/files/{name}/upload-url", summary="Get a URL to upload a file", response_model=UploadUrl)
async def upload_url(
    job_id: JobId,
    name: FileName,
    services: ServicesDep,
    caller: WorkerCaller,
    lease_token: Annotated[int, Header()],
) -> Response:
    """Get a URL of the bucket that accepts the file by PUT for a while; null if this server stores files."""
    await services.store.leases.check(job_id, checked_token(job_id, lease_token), key_of(caller))
    return await upload_url_of(services, f"{job_id}/{lease_token}/{name}")


@router.put(
    "/live/{number}",
    summary="Store a part of a clip that is being drawn",
    status_code=201,
    response_model=StoredFile,
    openapi_extra=BINARY,
)
async def put_live_part(
    job_id: JobId,
    number: Annotated[int, Path(ge=0, lt=MAX_PARTS, description="Parts are numbered from 0.")],
    request: Request,
    services: ServicesDep,
    caller: WorkerCaller,
    lease_token: Annotated[int, Header()],
) -> Response:
    """Store the body as the next part of the first clip of a `live` job; clients may fetch it from now on."""
    await services.store.leases.check_live(job_id, checked_token(job_id, lease_token), key_of(caller))
    stored = await store_body(services, request, live_key(job_id, lease_token, number))
    if stored is None:
        return Response(status_code=400)  # which nobody reads
    services.bus.publish(job_topic(job_id), {"type": "live", "num_parts": number + 1})
    return json_response(stored, 201)


@router.delete("/live", summary="Take back the parts of a clip", status_code=204)
async def drop_live_parts(
    job_id: JobId, services: ServicesDep, caller: WorkerCaller, lease_token: Annotated[int, Header()]
) -> Response:
    """Delete what was stored of the clip: a frame is not to be shown, or the attempt ends without it."""
    await services.store.leases.check(job_id, checked_token(job_id, lease_token), key_of(caller))
    await services.artifacts.delete(live_folder(job_id, lease_token))
    return Response(status_code=204)


@router.get("/inputs", summary="List the images that a job reads", response_model=LeasedFiles)
async def list_inputs(
    job_id: JobId, services: ServicesDep, caller: WorkerCaller, lease_token: Annotated[int, Header()]
) -> Response:
    """List the images that the job reads and that are still stored, with URLs of the bucket that has them.

    If the job starts from finished latents or a checkpoint, they are among the files.
    """
    await services.store.leases.check(job_id, checked_token(job_id, lease_token), key_of(caller))
    files = [_input(file) for file in await services.store.files.of_job(job_id)]
    latents, checkpoint = await services.store.leases.begun(job_id)
    if latents is not None:
        files.append(_latents(job_id, latents))
    if checkpoint is not None:
        files.append(_checkpoint(job_id, checkpoint))
    services.storage.check()
    leased = await asyncio.gather(*(_leased(services, file) for file in files))
    return json_response(LeasedFiles(files=tuple(leased)))


@router.get(
    "/inputs/{file_id}",
    summary="Fetch an image that a job reads",
    response_class=StreamingResponse,
    responses={200: {"content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def get_input(
    job_id: JobId,
    file_id: FileId,
    services: ServicesDep,
    caller: WorkerCaller,
    lease_token: Annotated[int, Header()],
) -> Response:
    """Fetch an image from a server that stores files itself."""
    await services.store.leases.check(job_id, checked_token(job_id, lease_token), key_of(caller))
    if file_id not in {file.id for file in await services.store.files.of_job(job_id)}:
        raise FileNotKnown(f"job {job_id} reads no file {file_id}")
    return await content_of(services.artifacts, input_key(file_id), CONTENT_TYPE)


@router.get(
    "/latents",
    summary="Fetch the finished latents that a job starts from",
    response_class=StreamingResponse,
    responses={200: {"content": {ANY_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def get_latents(
    job_id: JobId, services: ServicesDep, caller: WorkerCaller, lease_token: Annotated[int, Header()]
) -> Response:
    """Fetch the finished latents from a server that stores files itself. Only workers can read them."""
    await services.store.leases.check(job_id, checked_token(job_id, lease_token), key_of(caller))
    latents = await services.store.leases.latents_of(job_id)
    if latents is None:
        raise FileNotKnown(f"job {job_id} has no finished latents")
    return await content_of(services.artifacts, latents_key(job_id, latents.lease_token), ANY_TYPE)


@dataclass(frozen=True)
class _Readable:
    """A file that a leased job reads, and its key in the store."""

    file: LeasedFile
    key: str


def _input(file: InputFile) -> _Readable:
    leased = LeasedFile(id=file.id, size_bytes=file.size_bytes, sha256=file.sha256)
    return _Readable(leased, input_key(file.id))


def _latents(job_id: str, latents: StoredLatents) -> _Readable:
    leased = LeasedFile(id=LATENTS_ID, size_bytes=latents.size_bytes, sha256=latents.sha256)
    return _Readable(leased, latents_key(job_id, latents.lease_token))


def _checkpoint(job_id: str, stored: StoredCheckpoint) -> _Readable:
    leased = LeasedFile(id=CHECKPOINT_ID, size_bytes=stored.size_bytes, sha256=stored.sha256)
    return _Readable(leased, checkpoint_key(job_id, stored.lease_token, stored.slot))


async def _leased(services: Services, readable: _Readable) -> LeasedFile:
    url = await services.artifacts.download_url(readable.key, services.config.upload_url_seconds)
    return replace(readable.file, url=url)


async def _store_files(services: Services, job_id: str, completion: Completion, key_id: str) -> None:
    """Store the files sent along. Raise `UploadMissing` if one of the result is not stored whole."""
    contents = await contents_of(completion)
    with suppress(LeaseLost):  # the store decides: the completion may be a repetition
        await services.store.leases.check(job_id, completion.lease_token, key_id)
        services.storage.check()
        folder = f"{job_id}/{completion.lease_token}"
        if contents:
            await services.artifacts.put_all({f"{folder}/{name}": contents[name] for name in contents})
        uploaded = [each for each in completion.result.artifacts if each.name not in contents]
        await asyncio.gather(
            *(check_file(services.artifacts, folder, each.name, each.size_bytes) for each in uploaded)
        )


async def _check_latents(services: Services, job_id: str, report: HandOver, key_id: str) -> None:
    """Raise `UploadMissing` if the latents are not stored whole."""
    with suppress(LeaseLost):  # the store decides: the report may be a repetition
        await services.store.leases.check(job_id, report.lease_token, key_id)
        services.storage.check()
        await check_file(
            services.artifacts, f"{job_id}/{report.lease_token}", LATENTS_NAME, report.size_bytes
        )
