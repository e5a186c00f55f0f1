"""Finished files: by job and API key, or by a signed URL."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response, StreamingResponse

from diffuserve.api.auth.quota import ClientCaller
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.files.job_files import JobFiles, content_of, delivering
from diffuserve.api.files.serving import Part, file_responses, serve
from diffuserve.api.files.signing import UrlSigner
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.path_params import FileName, JobId, checked_token
from diffuserve.api.resources.serializers import output_of
from diffuserve.domain.errors import ArtifactNotFound, DiffuserveError, NotFinished
from diffuserve.domain.jobs.job import Job
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import ArtifactStore

router = APIRouter(tags=["results"], route_class=JsonRoute)


@dataclass(frozen=True)
class ResultParts:
    """Parts that these routes use."""

    store: JobStore
    artifacts: ArtifactStore
    url_signer: UrlSigner
    files: JobFiles


Used = Annotated[ResultParts, Depends(Uses(ResultParts))]


_FILE = file_responses("image/*", "video/*", "audio/*")


@dataclass(frozen=True)
class Signed:
    """Query of a signed URL."""

    expires: Annotated[int, Query(description="Seconds since the epoch.")]
    signature: str
    sha256: Annotated[str, Query(description="Of the content, its `ETag`.")] = ""


@router.get(
    "/v1/jobs/{job_id}/result",
    summary="Fetch an image, a clip or a sound",
    response_class=StreamingResponse,
    responses={**_FILE, 409: {"description": "`not_finished`: the job is not final yet."}},
)
async def get_job_result(
    job_id: JobId,
    parts: Used,
    caller: ClientCaller,
    part: Part,
    index: Annotated[int, Query(ge=0, description="Which of the job's images, clips or sounds.")] = 0,
) -> Response:
    """Fetch the file, or be redirected to where it is stored."""
    job = await parts.store.jobs.get(job_id, caller.scope)
    artifact = output_of(job, index)
    if artifact is None:
        raise _no_image(job, index)
    return await parts.files.response(job, artifact, part)


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
    parts: Used,
    signed: Annotated[Signed, Depends()],
    part: Part,
) -> Response:
    """Fetch a file without an API key: the signature authorizes the request."""
    checked_token(job_id, lease_token)
    await parts.url_signer.check(job_id, lease_token, name, **vars(signed))
    content = content_of(job_id, lease_token, name, signed.sha256)
    return delivering(parts.store, job_id, await serve(parts.artifacts, content, part))


def _no_image(job: Job, index: int) -> DiffuserveError:
    if not job.status.is_final:
        return NotFinished(f"job {job.id} is {job.status}; wait until it has succeeded")
    if job.result is None:
        return ArtifactNotFound(f"job {job.id} is {job.status} and has no result")
    return ArtifactNotFound(f"job {job.id} has no file {index}")
