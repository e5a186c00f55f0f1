"""Checkpoints of leased jobs: workers store them, and the next lease starts from the newest."""

from typing import Annotated

from fastapi import APIRouter, Header, Path, Request, Response
from fastapi.responses import StreamingResponse

from diffuserve.api.auth.dependencies import WorkerCaller, key_of
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.path_params import JobId, checked_token
from diffuserve.api.services import ServicesDep
from diffuserve.api.workers.leased_files import (
    ANY_TYPE,
    BINARY,
    check_file,
    content_of,
    stored_body,
    upload_url_of,
)
from diffuserve.api.workers.worker_validation import check_checkpoint
from diffuserve.domain.errors import FileNotKnown
from diffuserve.domain.jobs.checkpoint import NUM_SLOTS, StoredCheckpoint
from diffuserve.domain.workers.worker import StoredFile, UploadUrl
from diffuserve.storage.base import checkpoint_folder, checkpoint_key

router = APIRouter(prefix="/v1/leases/{job_id}/checkpoint", tags=["leases"], route_class=JsonRoute)

Slot = Annotated[int, Path(ge=0, lt=NUM_SLOTS, description="A lease's checkpoints take turns.")]


@router.post("", summary="Report a checkpoint", status_code=204)
async def keep_checkpoint(
    job_id: JobId, body: StoredCheckpoint, services: ServicesDep, caller: WorkerCaller
) -> Response:
    """Keep a checkpoint that is stored: the next lease of the job starts from the newest one."""
    token = checked_token(job_id, body.lease_token)
    await services.store.leases.check(job_id, token, key_of(caller))
    name = f"{check_checkpoint(body).slot}.safetensors"
    await check_file(services.artifacts, checkpoint_folder(job_id, token), name, body.size_bytes)
    before = await services.store.leases.keep_checkpoint(job_id, body, key_of(caller))
    services.metrics.checkpoints_stored.inc()
    if before is not None and before.lease_token != token:
        await services.artifacts.delete(checkpoint_folder(job_id, before.lease_token))
    return Response(status_code=204)


@router.get(
    "",
    summary="Fetch the checkpoint that a job starts from",
    response_class=StreamingResponse,
    responses={200: {"content": {ANY_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def get_checkpoint(
    job_id: JobId, services: ServicesDep, caller: WorkerCaller, lease_token: Annotated[int, Header()]
) -> Response:
    """Fetch the checkpoint from a server that stores files itself. Only workers can read it."""
    await services.store.leases.check(job_id, checked_token(job_id, lease_token), key_of(caller))
    _, stored = await services.store.leases.begun(job_id)
    if stored is None:
        raise FileNotKnown(f"job {job_id} has no checkpoint")
    key = checkpoint_key(job_id, stored.lease_token, stored.slot)
    return await content_of(services.artifacts, key, ANY_TYPE)


@router.put(
    "/{slot}",
    summary="Upload a checkpoint",
    status_code=201,
    response_model=StoredFile,
    openapi_extra=BINARY,
)
async def put_checkpoint(
    job_id: JobId,
    slot: Slot,
    request: Request,
    services: ServicesDep,
    caller: WorkerCaller,
    lease_token: Annotated[int, Header()],
) -> Response:
    """Store the body as a checkpoint of the job; it counts once it is reported. No client can read it."""
    await services.store.leases.check(job_id, checked_token(job_id, lease_token), key_of(caller))
    return await stored_body(services, request, checkpoint_key(job_id, lease_token, slot))


@router.post("/{slot}/upload-url", summary="Get a URL to upload a checkpoint", response_model=UploadUrl)
async def upload_url(
    job_id: JobId,
    slot: Slot,
    services: ServicesDep,
    caller: WorkerCaller,
    lease_token: Annotated[int, Header()],
) -> Response:
    """Get a URL of the bucket that accepts the checkpoint by PUT; null if this server stores files."""
    await services.store.leases.check(job_id, checked_token(job_id, lease_token), key_of(caller))
    return await upload_url_of(services, checkpoint_key(job_id, lease_token, slot))
