"""Clips while they are drawn."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.responses import StreamingResponse

from diffuserve.api.auth.waits import FollowingCaller
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.files.job_files import JobFiles
from diffuserve.api.files.serving import Part, file_responses
from diffuserve.api.following.job_watcher import JobWatcher
from diffuserve.api.following.live_clips import LiveClip
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.path_params import JobId
from diffuserve.api.resources.serializers import output_of
from diffuserve.domain.errors import ArtifactNotFound, Conflict
from diffuserve.domain.jobs.job import Artifact, Job
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import ArtifactStore
from diffuserve.storage.live_parts import LIVE_TYPE

router = APIRouter(tags=["results"], route_class=JsonRoute)


@dataclass(frozen=True)
class FollowingParts:
    """Parts that these routes use."""

    store: JobStore
    artifacts: ArtifactStore
    job_watcher: JobWatcher
    files: JobFiles


Used = Annotated[FollowingParts, Depends(Uses(FollowingParts))]


_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


@router.get(
    "/v1/jobs/{job_id}/live",
    summary="Watch a clip while it is drawn",
    response_class=StreamingResponse,
    responses={
        **file_responses(LIVE_TYPE),
        409: {"description": "`conflict`: the job is not live, and not finished."},
    },
)
async def watch_clip(job_id: JobId, parts: Used, caller: FollowingCaller, part: Part) -> Response:
    """Fetch the first clip of a `live` job as one growing MP4, which can be played from its first seconds on.

    It is sent as it is stored, from the beginning at every request, and ends with the job. Only if the job
    has succeeded is it complete. For a job that has succeeded already, the finished file is sent.
    """
    job = await parts.store.jobs.get(job_id, caller.scope)
    if job.status.is_final:
        return await parts.files.response(job, _finished(job), part)
    if not job.live:
        raise Conflict(f'job {job.id} was submitted without "live": true; wait for its result')
    clip = LiveClip(parts.job_watcher, parts.artifacts, job)
    return StreamingResponse(clip.content(), headers=_HEADERS, media_type=LIVE_TYPE)


def _finished(job: Job) -> Artifact:
    """Return the clip of a final job. Raise `ArtifactNotFound`."""
    clip = output_of(job, 0)
    if clip is None:
        raise ArtifactNotFound(f"job {job.id} is {job.status} and has no clip")
    return clip
