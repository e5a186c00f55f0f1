"""Jobs: submit, look, list, cancel, queue again, delete."""

import re
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from diffuserve.api.auth.dependencies import BaseUrl, Client, Operator
from diffuserve.api.auth.quota import Submitter
from diffuserve.api.path_params import JobId, known_job_id
from diffuserve.api.responses import json_response
from diffuserve.api.schemas import JobPageShape, JobShape, NewJobBody
from diffuserve.api.services import Services, ServicesOf
from diffuserve.api.submission import field_names, submit
from diffuserve.domain.job import Job, JobStatus

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

Wait = Annotated[float, Query(ge=0, allow_inf_nan=False, description="Seconds to hold the answer back.")]
_TOP_FIELDS = ("model", "webhook.url")
_PREFERRED_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,9})(?:$|[,;\s])")


@router.post(
    "",
    summary="Submit a job",
    status_code=202,
    response_model=JobShape,
    responses={200: {"model": JobShape, "description": "Final in the time of `Prefer: wait=SECONDS`."}},
)
async def submit_job(
    body: NewJobBody,
    services: ServicesOf,
    caller: Submitter,
    base_url: BaseUrl,
    prefer: Annotated[str, Header(description="`wait=SECONDS` holds the answer back, 60 at most.")] = "",
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=255, description="The same key and body give the same job."),
    ] = None,
) -> Response:
    with field_names(lambda name: name if name in _TOP_FIELDS else f"input.{name}"):
        job = await submit(services, caller, body, base_url, idempotency_key)
    headers = {"location": f"{base_url}/v1/jobs/{job.id}"}
    status = 202
    if wish := _PREFERRED_WAIT.search(prefer):
        seconds = min(int(wish[1]), int(services.config.longest_wait_seconds))
        headers["preference-applied"] = f"wait={seconds}"
        job = await services.follower.final(job.id, seconds)
        status = 200 if job.status.is_final else 202
    return json_response(await services.documents.new_job(job, base_url), status, headers)


@router.get("", summary="List jobs, newest first", response_model=JobPageShape)
async def list_jobs(
    services: ServicesOf,
    caller: Client,
    base_url: BaseUrl,
    status: Annotated[list[JobStatus] | None, Query(description="Any of these; all if left out.")] = None,
    after: Annotated[str | None, Query(description="The `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """`queue` is null here; get a job to hear its place."""
    jobs = await services.store.jobs.list_jobs(
        tenant_id=caller.scope,
        statuses=status or (),
        after=None if after is None else known_job_id(after),
        limit=limit + 1,
    )
    page = jobs[:limit]
    documents = [await services.documents.listed_job(job, base_url) for job in page]
    has_more = len(jobs) > limit
    return json_response({"data": documents, "has_more": has_more, "next": page[-1].id if has_more else None})


@router.get(
    "/{job_id}",
    summary="Get a job",
    response_model=JobShape,
    responses={304: {"description": "Nothing new since the `ETag` in `If-None-Match`."}},
)
async def get_job(
    job_id: JobId,
    services: ServicesOf,
    caller: Client,
    base_url: BaseUrl,
    wait: Wait = 0.0,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """With `wait` the answer comes once the job is final, or has changed since `If-None-Match`."""
    job = await services.store.jobs.get(job_id, caller.scope)
    seconds = min(wait, services.config.longest_wait_seconds)
    if seconds and not job.status.is_final:
        job = await _news(services, job, seconds, if_none_match)
    tag = services.documents.tag(job)
    if tag == if_none_match:
        return Response(status_code=304, headers={"etag": tag})
    return json_response(await services.documents.job(job, base_url), headers={"etag": tag})


@router.post(
    "/{job_id}/cancel",
    summary="Cancel a job",
    status_code=202,
    response_model=JobShape,
    responses={200: {"model": JobShape, "description": "Final, now or before."}},
)
async def cancel_job(job_id: JobId, services: ServicesOf, caller: Client, base_url: BaseUrl) -> Response:
    """A running job is `canceling` until its worker has let go of it."""
    job = await services.store.jobs.cancel(job_id, caller.scope)
    document = await services.documents.job(job, base_url)
    return json_response(document, 200 if job.status.is_final else 202)


@router.post("/{job_id}/requeue", summary="Queue a job again", status_code=202, response_model=JobShape)
async def requeue_job(job_id: JobId, services: ServicesOf, caller: Operator, base_url: BaseUrl) -> Response:
    """For operators: a job that failed, expired or was canceled gets fresh attempts."""
    job = await services.store.operations.requeue(job_id)
    return json_response(await services.documents.job(job, base_url), 202)


@router.delete("/{job_id}", summary="Delete a job and its files", status_code=204)
async def delete_job(job_id: JobId, services: ServicesOf, caller: Client) -> Response:
    """A live job is canceled first, and erased once it is final."""
    job = await services.store.jobs.get(job_id, caller.scope)
    await services.store.jobs.delete(job_id, caller.scope)
    if job.status.is_final:
        await services.artifacts.delete(job_id)
    return Response(status_code=204)


async def _news(services: Services, job: Job, seconds: float, known_tag: str | None) -> Job:
    """The job once it is final, has another tag than the known one, or when time is up."""
    async with aclosing(services.follower.follow(job.id, seconds)) as looks:
        async for look in looks:
            job = look if isinstance(look, Job) else job
            if known_tag is not None and services.documents.tag(job) != known_tag:
                break
    return job
