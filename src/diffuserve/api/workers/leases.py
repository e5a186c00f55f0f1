"""Reports of workers on the jobs that they hold. Every write carries the lease's token."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import StreamingResponse

from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.following.job_metrics import JobMetrics
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.path_params import FileId, FileName
from diffuserve.api.http.responses import json_response
from diffuserve.api.workers.held_leases import CheckedLease, Held, HeldLive, Reported, reported, reported_end
from diffuserve.api.workers.leased_files import ANY_TYPE, BINARY, LeasedFileStore, contents_of
from diffuserve.api.workers.progress import publish_progress
from diffuserve.api.workers.worker_validation import check_completion, check_failure, check_storable
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
from diffuserve.events.base import EventBus, job_topic
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import checkpoint_key, input_key, latents_key
from diffuserve.storage.live_parts import MAX_PARTS, live_folder, live_key
from diffuserve.telemetry.metrics import ControlMetrics

router = APIRouter(prefix="/v1/leases/{job_id}", tags=["leases"], route_class=JsonRoute)


ReportedProgress = Annotated[Reported[ProgressReport], Depends(reported(ProgressReport))]
ReportedCompletion = Annotated[Reported[Completion], Depends(reported_end(Completion))]
ReportedHandOver = Annotated[Reported[HandOver], Depends(reported_end(HandOver))]
ReportedFailure = Annotated[Reported[Failure], Depends(reported_end(Failure))]
ReportedRelease = Annotated[Reported[Release], Depends(reported_end(Release))]


@dataclass(frozen=True)
class LeaseParts:
    """Parts that these routes use."""

    store: JobStore
    files: LeasedFileStore
    bus: EventBus
    metrics: ControlMetrics
    job_metrics: JobMetrics


Used = Annotated[LeaseParts, Depends(Uses(LeaseParts))]


@router.post("/events", summary="Report progress", status_code=204)
async def report_job_progress(report: ReportedProgress, parts: Used) -> Response:
    """Publish progress and previews to clients that watch the job; they are not stored."""
    publish_progress(parts.bus, report.lease.job_id, report.body)
    return Response(status_code=204)


@router.post("/complete", summary="Finish a job", response_model=LeaseOutcome)
async def complete_job(report: ReportedCompletion, parts: Used) -> Response:
    """Complete a job, each of whose files is stored or sent along. Safe to repeat with the same token."""
    lease, completion = report.lease, check_completion(report.body)
    await _store_files(parts, lease, completion)
    status = await parts.store.leases.complete(lease.job_id, completion, lease.key_id)
    await parts.job_metrics.record_run_end(lease.job_id, status, completion.actual_seconds)
    if status is JobStatus.SUCCEEDED:
        parts.metrics.observe_phases(completion.result.timings)
    return json_response(LeaseOutcome(lease.job_id, status))


@router.post("/hand-over", summary="End the first phase of a job", response_model=LeaseOutcome)
async def hand_over_job(report: ReportedHandOver, parts: Used) -> Response:
    """Queue a job to be decoded; its finished latents must be stored. Safe to repeat with the same token."""
    lease, handed = report.lease, check_storable(report.body)
    await _check_latents(parts, lease, handed)
    status = await parts.store.leases.hand_over(lease.job_id, handed, lease.key_id)
    await parts.job_metrics.record_run_end(
        lease.job_id, status, handed.actual_seconds, useful=JobStatus.QUEUED
    )
    return json_response(LeaseOutcome(lease.job_id, status))


@router.post("/fail", summary="Report a failed attempt", response_model=LeaseOutcome)
async def fail_attempt(report: ReportedFailure, parts: Used) -> Response:
    """Report an error, after which the job fails or is queued for another attempt."""
    lease, failure = report.lease, check_failure(report.body)
    status = await parts.store.leases.fail(lease.job_id, failure, lease.key_id)
    await parts.job_metrics.record_run_end(lease.job_id, status, failure.actual_seconds)
    return json_response(LeaseOutcome(lease.job_id, status))


@router.post("/release", summary="Release a job", response_model=LeaseOutcome)
async def release_job(report: ReportedRelease, parts: Used) -> Response:
    """Return a job to the queue without an outcome."""
    lease, released = report.lease, report.body
    status = await parts.store.leases.release(lease.job_id, released, lease.key_id)
    await parts.job_metrics.record_run_end(lease.job_id, status)
    if released.cause is ReleaseCause.PREEMPTED:
        parts.metrics.preempted.inc()
    elif released.cause is ReleaseCause.INTERRUPTED:
        parts.metrics.interrupted.inc()
    return json_response(LeaseOutcome(lease.job_id, status))


@router.put(
    "/files/{name}",
    summary="Upload a file",
    status_code=201,
    response_model=StoredFile,
    openapi_extra=BINARY,
)
async def put_result_file(lease: Held, name: FileName, request: Request, parts: Used) -> Response:
    """Store the body as a file of the job; clients see it once the job is completed with the same token."""
    return await parts.files.stored(request, f"{lease.folder}/{name}")


@router.post("/files/{name}/upload-url", summary="Get a URL to upload a file", response_model=UploadUrl)
async def get_file_upload_url(lease: Held, name: FileName, parts: Used) -> Response:
    """Get a URL of the bucket that accepts the file by PUT for a while; null if this server stores files."""
    return await parts.files.upload_url(f"{lease.folder}/{name}")


@router.put(
    "/live/{number}",
    summary="Store a part of a clip that is being drawn",
    status_code=201,
    response_model=StoredFile,
    openapi_extra=BINARY,
)
async def put_live_part(
    lease: HeldLive,
    number: Annotated[int, Path(ge=0, lt=MAX_PARTS, description="Parts are numbered from 0.")],
    request: Request,
    parts: Used,
) -> Response:
    """Store the body as the next part of the first clip of a `live` job; clients may fetch it from now on."""
    stored = await parts.files.store(request, live_key(lease.job_id, lease.token, number))
    if stored is None:
        return Response(status_code=400)  # which nobody reads
    parts.bus.publish(job_topic(lease.job_id), {"type": "live", "num_parts": number + 1})
    return json_response(stored, 201)


@router.delete("/live", summary="Take back the parts of a clip", status_code=204)
async def drop_live_parts(lease: Held, parts: Used) -> Response:
    """Delete what was stored of the clip: a frame is not to be shown, or the attempt ends without it."""
    await parts.files.artifacts.delete(live_folder(lease.job_id, lease.token))
    return Response(status_code=204)


@router.get("/inputs", summary="List the images that a job reads", response_model=LeasedFiles)
async def list_job_inputs(lease: Held, parts: Used) -> Response:
    """List the images that the job reads and that are still stored, with URLs of the bucket that has them.

    If the job starts from finished latents or a checkpoint, they are among the files.
    """
    job_id = lease.job_id
    files = [_input(file) for file in await parts.store.files.of_job(job_id)]
    latents, checkpoint = await parts.store.leases.begun(job_id)
    if latents is not None:
        files.append(_latents(job_id, latents))
    if checkpoint is not None:
        files.append(_checkpoint(job_id, checkpoint))
    parts.files.storage.check()
    leased = await asyncio.gather(*(_leased(parts.files, file) for file in files))
    return json_response(LeasedFiles(files=tuple(leased)))


@router.get(
    "/inputs/{file_id}",
    summary="Fetch an image that a job reads",
    response_class=StreamingResponse,
    responses={200: {"content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def get_job_input(lease: Held, file_id: FileId, parts: Used) -> Response:
    """Fetch an image from a server that stores files itself."""
    if file_id not in {file.id for file in await parts.store.files.of_job(lease.job_id)}:
        raise FileNotKnown(f"job {lease.job_id} reads no file {file_id}")
    return await parts.files.content(input_key(file_id), CONTENT_TYPE)


@router.get(
    "/latents",
    summary="Fetch the finished latents that a job starts from",
    response_class=StreamingResponse,
    responses={200: {"content": {ANY_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def get_job_latents(lease: Held, parts: Used) -> Response:
    """Fetch the finished latents from a server that stores files itself. Only workers can read them."""
    latents = await parts.store.leases.latents_of(lease.job_id)
    if latents is None:
        raise FileNotKnown(f"job {lease.job_id} has no finished latents")
    return await parts.files.content(latents_key(lease.job_id, latents.lease_token), ANY_TYPE)


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


async def _leased(files: LeasedFileStore, readable: _Readable) -> LeasedFile:
    url = await files.artifacts.download_url(readable.key, files.config.upload_url_seconds)
    return replace(readable.file, url=url)


async def _store_files(parts: LeaseParts, lease: CheckedLease, completion: Completion) -> None:
    """Store the files sent along. Raise `UploadMissing` if one of the result is not stored whole."""
    contents = await contents_of(completion)
    with suppress(LeaseLost):  # the store decides: the completion may be a repetition
        await parts.store.leases.check(lease.job_id, lease.token, lease.key_id)
        parts.files.storage.check()
        if contents:
            await parts.files.artifacts.put_all(
                {f"{lease.folder}/{name}": content for name, content in contents.items()}
            )
        uploaded = [each for each in completion.result.artifacts if each.name not in contents]
        await asyncio.gather(
            *(parts.files.check(lease.folder, each.name, each.size_bytes) for each in uploaded)
        )


async def _check_latents(parts: LeaseParts, lease: CheckedLease, report: HandOver) -> None:
    """Raise `UploadMissing` if the latents are not stored whole."""
    with suppress(LeaseLost):  # the store decides: the report may be a repetition
        await parts.store.leases.check(lease.job_id, lease.token, lease.key_id)
        parts.files.storage.check()
        await parts.files.check(lease.folder, LATENTS_NAME, report.size_bytes)
