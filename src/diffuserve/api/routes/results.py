"""Finished files: by job and API key, or by a signed URL."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from diffuserve.api.auth.quota import ClientCaller
from diffuserve.api.json_route import JsonRoute
from diffuserve.api.path_params import FileName, JobId, checked_token
from diffuserve.api.serializers import image_of
from diffuserve.api.services import Services, ServicesDep
from diffuserve.domain.errors import ArtifactNotFound, DiffuserveError, NotFinished
from diffuserve.domain.job import Job
from diffuserve.storage.base import content_type_of

router = APIRouter(tags=["results"], route_class=JsonRoute)

_FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}
}


@router.get(
    "/v1/jobs/{job_id}/result",
    summary="Fetch an image",
    response_class=StreamingResponse,
    responses={**_FILE, 409: {"description": "`not_finished`: the job is not final yet."}},
)
async def get_result(
    job_id: JobId,
    services: ServicesDep,
    caller: ClientCaller,
    index: Annotated[int, Query(ge=0, description="Which of the job's images.")] = 0,
) -> Response:
    """Fetch the file, or be redirected to where it is stored."""
    job = await services.store.jobs.get(job_id, caller.scope)
    artifact = image_of(job, index)
    if artifact is None:
        raise _no_image(job, index)
    external_url = await services.file_urls.external_url(job.id, job.lease_token, artifact.name)
    if external_url is not None:
        return RedirectResponse(external_url)
    return await _file(services, f"{job.id}/{job.lease_token}/{artifact.name}")


@router.get(
    "/files/{job_id}/{lease_token}/{name}",
    summary="Fetch a file by its signed URL",
    response_class=StreamingResponse,
    responses=_FILE,
)
async def get_signed_file(
    job_id: JobId,
    lease_token: int,
    name: FileName,
    services: ServicesDep,
    expires: Annotated[int, Query(description="Seconds since the epoch.")],
    signature: str,
) -> StreamingResponse:
    """Fetch a file without an API key: the signature authorizes the request."""
    checked_token(job_id, lease_token)
    await services.url_signer.check(job_id, lease_token, name, expires, signature)
    return await _file(services, f"{job_id}/{lease_token}/{name}")


async def _file(services: Services, key: str) -> StreamingResponse:
    """Build the response. Raise `ArtifactNotFound` before it begins."""
    size = await services.artifacts.size(key)
    headers = {
        "content-length": str(size),
        "cache-control": "private, max-age=86400, immutable",
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(services.artifacts.read(key), headers=headers, media_type=content_type_of(key))


def _no_image(job: Job, index: int) -> DiffuserveError:
    if not job.status.is_final:
        return NotFinished(f"job {job.id} is {job.status}; wait until it has succeeded")
    if job.result is None:
        return ArtifactNotFound(f"job {job.id} is {job.status} and has no result")
    return ArtifactNotFound(f"job {job.id} has no image {index}")
