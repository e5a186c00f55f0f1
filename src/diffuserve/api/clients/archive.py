"""The route of the zip file of what several jobs have made."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask, BackgroundTasks

from diffuserve.api.auth.waits import FollowingCaller
from diffuserve.api.clients.job_queries import JobIdText
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.files.job_archive import MAX_JOBS, JobArchive
from diffuserve.api.files.job_files import note_delivered
from diffuserve.api.http.parts import Uses
from diffuserve.domain.errors import JobNotFound
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import ArtifactStore

router = APIRouter(prefix="/v1/jobs", tags=["results"], route_class=JsonRoute)


@dataclass(frozen=True)
class ArchiveParts:
    """Parts that these routes use."""

    store: JobStore
    artifacts: ArtifactStore


Used = Annotated[ArchiveParts, Depends(Uses(ArchiveParts))]


_BINARY = {"schema": {"type": "string", "format": "binary"}}


@router.get(
    "/archive",
    summary="Fetch the files of several jobs as one zip",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/zip": _BINARY}}},
)
async def get_job_archive(
    parts: Used,
    caller: FollowingCaller,
    id: Annotated[list[JobIdText], Query(min_length=1, max_length=MAX_JOBS, description="Ids of jobs.")],
) -> StreamingResponse:
    """Stream the images, clips and sounds, and `manifest.json` with each job's input and what is missing.

    It is packed while it is sent, so its size is not known before.
    """
    wanted = list(dict.fromkeys(id))
    found = await parts.store.jobs.get_many(wanted)
    own = {job_id: job for job_id, job in found.items() if caller.scope in (None, job.tenant_id)}
    if not own:
        raise JobNotFound(f"none of the {len(wanted)} jobs is there")
    archive = JobArchive.of(parts.artifacts, [job_id for job_id in wanted if job_id not in own])
    jobs = [own[job_id] for job_id in wanted if job_id in own]
    headers = {"content-disposition": 'attachment; filename="diffuserve.zip"', "cache-control": "no-store"}
    response = StreamingResponse(archive.stream(jobs), media_type="application/zip", headers=headers)
    response.background = BackgroundTasks(
        [BackgroundTask(note_delivered, parts.store, job.id) for job in jobs if job.forget_delivered]
    )
    return response
