"""Jobs: submit, get, list, cancel, requeue, delete."""

import re
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response

from diffuserve.api.auth.dependencies import BaseUrl, OperatorCaller
from diffuserve.api.auth.quota import ClientCaller, SubmittingCaller
from diffuserve.api.auth.waits import WaitSlots
from diffuserve.api.clients.job_queries import JobQuery, etag_of, find_jobs
from diffuserve.api.config import ApiConfig
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.door.origin import Origin
from diffuserve.api.files.job_files import JobFiles
from diffuserve.api.following.job_watcher import JobWatcher
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.path_params import JobId
from diffuserve.api.http.responses import json_response
from diffuserve.api.resources.serializers import JobSerializer
from diffuserve.api.submit.request_bodies import NewJobBody
from diffuserve.api.submit.submission import Submission, Submissions, renamed_fields
from diffuserve.domain.jobs.job import Job
from diffuserve.domain.resources.job import JobPage, JobResource
from diffuserve.jobs.store import JobStore

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=JsonRoute)


@dataclass(frozen=True)
class JobParts:
    """Parts that these routes use."""

    store: JobStore
    config: ApiConfig
    submissions: Submissions
    job_watcher: JobWatcher
    serializer: JobSerializer
    files: JobFiles
    slots: WaitSlots


Used = Annotated[JobParts, Depends(Uses(JobParts))]


Wait = Annotated[float, Query(ge=0, allow_inf_nan=False, description="Seconds to delay the response.")]
_PREFERRED_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,9})(?:$|[,;\s])")


@router.post(
    "",
    summary="Submit a job",
    status_code=202,
    response_model=JobResource,
    responses={200: {"model": JobResource, "description": "Final within `Prefer: wait=SECONDS`."}},
)
async def submit_job(
    body: NewJobBody,
    parts: Used,
    caller: SubmittingCaller,
    origin: Origin,
    prefer: Annotated[str, Header(description="`wait=SECONDS` delays the response, by 60 at most.")] = "",
) -> Response:
    """Queue a job; with `Prefer: wait=SECONDS` wait for its end."""
    seconds = _preferred_seconds(prefer, parts.config.longest_wait_seconds)
    async with parts.slots.hold(caller) if seconds else nullcontext():  # refused before it is queued
        with renamed_fields(path_in_body):
            submission = Submission(caller.tenant_id, body, origin.base_url, origin.idempotency_key)
            job = await parts.submissions.submit(submission)
        headers = {"location": f"{origin.base_url}/v1/jobs/{job.id}"}
        status = 202
        if job.id != submission.job_id:
            headers["idempotent-replayed"] = "true"
        if seconds is not None:
            headers["preference-applied"] = f"wait={seconds}"
            job = await parts.job_watcher.final(job, seconds)
            status = 200 if job.status.is_final else 202
    return json_response(await parts.serializer.job(job, origin.base_url), status, headers)


def path_in_body(name: str) -> str:
    """Return the path of a field that is refused: the body's own, or one of its input."""
    return name if name.partition(".")[0] in NewJobBody.model_fields else f"input.{name}"


@router.get(
    "",
    summary="List jobs, newest first",
    response_model=JobPage,
    responses={304: {"description": "Unchanged since the `ETag` in `If-None-Match`."}},
)
async def list_jobs(
    parts: Used,
    caller: ClientCaller,
    base_url: BaseUrl,
    query: Annotated[JobQuery, Query()],
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """List the caller's jobs. `queue` is null in a list; get a job to see its place.

    With filters a page may hold fewer jobs than `limit`, or none, though more match: go on after `next`.
    """
    found = await find_jobs(parts.store, caller, query)
    etag = etag_of(found, parts.serializer)
    if etag == if_none_match:
        return Response(status_code=304, headers={"etag": etag})
    resources = tuple([await parts.serializer.listed_job(job, base_url) for job in found.jobs])
    page = JobPage(data=resources, has_more=found.next is not None, next=found.next)
    return json_response(page, headers={"etag": etag})


@router.get(
    "/{job_id}",
    summary="Get a job",
    response_model=JobResource,
    responses={304: {"description": "Unchanged since the `ETag` in `If-None-Match`."}},
)
async def get_job(
    job_id: JobId,
    parts: Used,
    caller: ClientCaller,
    base_url: BaseUrl,
    wait: Wait = 0.0,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Get a job; with `wait` respond once it is final, or has changed since `If-None-Match`."""
    job = await parts.store.jobs.get(job_id, caller.scope)
    seconds = min(wait, parts.config.longest_wait_seconds)
    if seconds and not job.status.is_final:
        async with parts.slots.hold(caller):
            job = await _wait_for_change(parts, job, seconds, if_none_match)
    etag = parts.serializer.etag(job)
    if etag == if_none_match:
        return Response(status_code=304, headers={"etag": etag})
    return json_response(await parts.serializer.job(job, base_url), headers={"etag": etag})


@router.post(
    "/{job_id}/cancel",
    summary="Cancel a job",
    status_code=202,
    response_model=JobResource,
    responses={200: {"model": JobResource, "description": "The job is final, now or before."}},
)
async def cancel_job(job_id: JobId, parts: Used, caller: ClientCaller, base_url: BaseUrl) -> Response:
    """Cancel a job. A running job is `canceling` until its worker has released it."""
    job = await parts.store.jobs.cancel(job_id, caller.scope)
    resource = await parts.serializer.job(job, base_url)
    return json_response(resource, 200 if job.status.is_final else 202)


@router.post("/{job_id}/requeue", summary="Requeue a job", status_code=202, response_model=JobResource)
async def requeue_job(job_id: JobId, parts: Used, caller: OperatorCaller, base_url: BaseUrl) -> Response:
    """Give a job that failed, expired or was canceled new attempts. For operators."""
    job = await parts.store.operations.requeue(job_id)
    return json_response(await parts.serializer.job(job, base_url), 202)


@router.delete("/{job_id}", summary="Delete a job and its files", status_code=204)
async def delete_job(job_id: JobId, parts: Used, caller: ClientCaller) -> Response:
    """Delete a job. A job that is not final is canceled first, and deleted once it is final."""
    job = await parts.store.jobs.get(job_id, caller.scope)
    await parts.files.delete(job, caller)
    return Response(status_code=204)


def _preferred_seconds(prefer: str, longest: float) -> int | None:
    """Return the seconds that a `Prefer` header asks to wait, as far as they are granted."""
    preferred = _PREFERRED_WAIT.search(prefer)
    return min(int(preferred[1]), int(longest)) if preferred else None


async def _wait_for_change(parts: JobParts, job: Job, seconds: float, known_etag: str | None) -> Job:
    """Return the job once it is final or has another tag than `known_etag`, at the latest after `seconds`."""
    async with aclosing(parts.job_watcher.watch(job, seconds)) as updates:
        async for update in updates:
            job = update if isinstance(update, Job) else job
            if known_etag is not None and parts.serializer.etag(job) != known_etag:
                break
    return job
