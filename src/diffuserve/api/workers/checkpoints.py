"""Checkpoints of leased jobs: workers store them, and the next lease starts from the newest."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import StreamingResponse

from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.parts import Uses
from diffuserve.api.workers.held_leases import Held, Reported, reported
from diffuserve.api.workers.leased_files import ANY_TYPE, BINARY, LeasedFileStore
from diffuserve.api.workers.worker_validation import check_storable
from diffuserve.domain.errors import FileNotKnown
from diffuserve.domain.jobs.checkpoint import NUM_SLOTS, StoredCheckpoint
from diffuserve.domain.workers.worker import StoredFile, UploadUrl
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import checkpoint_folder, checkpoint_key
from diffuserve.telemetry.metrics import ControlMetrics

router = APIRouter(prefix="/v1/leases/{job_id}/checkpoint", tags=["leases"], route_class=JsonRoute)

Slot = Annotated[int, Path(ge=0, lt=NUM_SLOTS, description="A lease's checkpoints take turns.")]
ReportedCheckpoint = Annotated[Reported[StoredCheckpoint], Depends(reported(StoredCheckpoint))]


@dataclass(frozen=True)
class CheckpointParts:
    """Parts that these routes use."""

    store: JobStore
    files: LeasedFileStore
    metrics: ControlMetrics


Used = Annotated[CheckpointParts, Depends(Uses(CheckpointParts))]


@router.post("", summary="Report a checkpoint", status_code=204)
async def keep_checkpoint(report: ReportedCheckpoint, parts: Used) -> Response:
    """Keep a checkpoint that is stored: the next lease of the job starts from the newest one."""
    lease, stored = report.lease, check_storable(report.body)
    name = f"{stored.slot}.safetensors"
    await parts.files.check(checkpoint_folder(lease.job_id, lease.token), name, stored.size_bytes)
    before = await parts.store.leases.keep_checkpoint(lease.job_id, stored, lease.key_id)
    parts.metrics.checkpoints_stored.inc()
    if before is not None and before.lease_token != lease.token:
        await parts.files.artifacts.delete(checkpoint_folder(lease.job_id, before.lease_token))
    return Response(status_code=204)


@router.get(
    "",
    summary="Fetch the checkpoint that a job starts from",
    response_class=StreamingResponse,
    responses={200: {"content": {ANY_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def get_checkpoint(lease: Held, parts: Used) -> Response:
    """Fetch the checkpoint from a server that stores files itself. Only workers can read it."""
    _, stored = await parts.store.leases.begun(lease.job_id)
    if stored is None:
        raise FileNotKnown(f"job {lease.job_id} has no checkpoint")
    return await parts.files.content(checkpoint_key(lease.job_id, stored.lease_token, stored.slot), ANY_TYPE)


@router.put(
    "/{slot}",
    summary="Upload a checkpoint",
    status_code=201,
    response_model=StoredFile,
    openapi_extra=BINARY,
)
async def put_checkpoint(lease: Held, slot: Slot, request: Request, parts: Used) -> Response:
    """Store the body as a checkpoint of the job; it counts once it is reported. No client can read it."""
    return await parts.files.stored(request, checkpoint_key(lease.job_id, lease.token, slot))


@router.post("/{slot}/upload-url", summary="Get a URL to upload a checkpoint", response_model=UploadUrl)
async def get_checkpoint_upload_url(lease: Held, slot: Slot, parts: Used) -> Response:
    """Get a URL of the bucket that accepts the checkpoint by PUT; null if this server stores files."""
    return await parts.files.upload_url(checkpoint_key(lease.job_id, lease.token, slot))
