"""Routes of fal's queue, and of requests that wait for their result, for its unmodified clients."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.dependencies import BaseUrl
from diffuserve.api.auth.quota import ClientCaller, SubmittingCaller
from diffuserve.api.auth.waits import FollowingCaller, SubmittingFollower
from diffuserve.api.config import ApiConfig
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.door.middleware import CLIENT_CLOSED_REQUEST
from diffuserve.api.door.origin import Origin, RequestOrigin
from diffuserve.api.fal.applications import model_of
from diffuserve.api.fal.errors import error_response
from diffuserve.api.fal.request_bodies import FalArguments, QueueHeaders, name_in_arguments
from diffuserve.api.fal.results import FORM, QUEUE, RUN, FalSerializer, RequestUrls, failure, is_inline
from diffuserve.api.files.job_files import delivering
from diffuserve.api.following.awaited_jobs import AwaitedJobs
from diffuserve.api.following.job_watcher import JobWatcher
from diffuserve.api.http.background_tasks import BackgroundTasks
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.path_params import JobId
from diffuserve.api.http.problem import Problem
from diffuserve.api.http.responses import json_response
from diffuserve.api.reads.catalog import Catalog
from diffuserve.api.submit.submission import Submission, Submissions, renamed_fields
from diffuserve.domain.jobs.job import MAX_PREVIEWS, Job, JobStatus
from diffuserve.jobs.store import JobStore

router = APIRouter(tags=["fal"], route_class=JsonRoute)

_REQUEST = QUEUE + "/{owner}/{alias}/requests/{job_id}"
_IN_PROGRESS = Problem(status=400, code="in_progress", detail="Request is still in progress")


@dataclass(frozen=True)
class FalParts:
    """Parts that these routes use."""

    config: ApiConfig
    store: JobStore
    catalog: Catalog
    submissions: Submissions
    job_watcher: JobWatcher
    awaited: AwaitedJobs
    background_tasks: BackgroundTasks
    serializer: FalSerializer


Used = Annotated[FalParts, Depends(Uses(FalParts))]


@dataclass(frozen=True)
class AskedOfFal:
    """What a request asks for beside its body: the application, how to treat it, and whom to notify."""

    application: str
    origin: Origin
    headers: Annotated[QueueHeaders, Depends()]
    fal_webhook: Annotated[str | None, Query(min_length=1, max_length=2_000)] = None

    def urls(self, job: Job) -> RequestUrls:
        """Return the URLs of the request that the job answers."""
        return RequestUrls.of(self.origin.base_url, self.application, job.id)


@dataclass(frozen=True)
class FalFollower:
    """Who asks for the state of a request, at which address, and whether with what happened so far."""

    owner: str
    alias: str
    job_id: JobId
    base_url: BaseUrl
    logs: Annotated[bool, Query(description="Have lines about what happened so far.")] = False

    @property
    def urls(self) -> RequestUrls:
        """The URLs of the request."""
        return RequestUrls.of(self.base_url, f"{self.owner}/{self.alias}", self.job_id)


Ask = Annotated[AskedOfFal, Depends()]
Follow = Annotated[FalFollower, Depends()]


@router.post(QUEUE + "/{application:path}", summary="Queue a request")
async def submit(body: FalArguments, parts: Used, caller: SubmittingCaller, asked: Ask) -> Response:
    """Queue a job for the model that the application stands for."""
    job = await _submitted(parts, caller, asked, body)
    return json_response(await parts.serializer.status(job, asked.urls(job), with_logs=False))


@router.get(_REQUEST + "/status", summary="Get the state of a request")
async def get_status(parts: Used, caller: ClientCaller, follower: Follow) -> Response:
    """Tell whether a request waits, runs or has ended; `202` until it has."""
    job = await parts.store.jobs.get(follower.job_id, caller.scope)
    state = await parts.serializer.status(job, follower.urls, follower.logs)
    return json_response(state, 200 if job.status.is_final else 202)


@router.get(_REQUEST + "/status/stream", summary="Follow a request", response_class=EventSourceResponse)
async def stream_status(parts: Used, caller: FollowingCaller, follower: Follow) -> EventSourceResponse:
    """Send the state of a request at every change, until it has ended."""
    job = await parts.store.jobs.get(follower.job_id, caller.scope)
    return _streamed(parts, _states(parts, job, follower))


@router.get(_REQUEST, summary="Get the result of a request")
async def get_result(parts: Used, caller: ClientCaller, follower: Follow) -> Response:
    """Get the output, or why there is none."""
    job = await parts.store.jobs.get(follower.job_id, caller.scope)
    return await _output(parts, job, follower.base_url)


@router.put(_REQUEST + "/cancel", summary="Cancel a request")
async def cancel(parts: Used, caller: ClientCaller, follower: Follow) -> Response:
    """Cancel a request; one that has ended already stays as it is."""
    before = await parts.store.jobs.get(follower.job_id, caller.scope)
    if before.status.is_final:
        return json_response({"status": "ALREADY_COMPLETED"}, 400)
    await parts.store.jobs.cancel(before.id, caller.scope)
    return json_response({"status": "CANCELLATION_REQUESTED"}, 202)


@router.post(
    RUN + "/{application:path}/stream", summary="Run, and follow it", response_class=EventSourceResponse
)
async def stream(
    body: FalArguments, parts: Used, caller: SubmittingFollower, asked: Ask
) -> EventSourceResponse:
    """Send previews of the first image, and then the output.

    A client that disconnects cancels the job, unless an `Idempotency-Key` lets it return.
    """
    job = await _submitted(parts, caller, asked, body, num_previews=MAX_PREVIEWS)
    return _streamed(parts, _outputs(parts, job, asked.origin))


@router.post(RUN + "/{application:path}", summary="Run, and wait for the result")
async def run(
    body: FalArguments, request: Request, parts: Used, caller: SubmittingFollower, asked: Ask
) -> Response:
    """Run a job and respond with its output.

    A client that disconnects cancels it, unless an `Idempotency-Key` lets it return.
    """
    job = await _submitted(parts, caller, asked, body)
    final = await parts.awaited.final(request, job, asked.origin.may_return)
    if final is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return await _output(parts, final, asked.origin.base_url)


async def _submitted(
    parts: FalParts, caller: Caller, asked: AskedOfFal, body: FalArguments, num_previews: int = 0
) -> Job:
    spec = (await model_of(parts.catalog, asked.application)).spec
    options = asked.headers.options(body.fallback_model, parts.store.config.longest_kept)
    new = body.job(spec, options, asked.headers.priority, asked.fal_webhook)
    if spec.has_previews:
        new = new.model_copy(update={"num_previews": num_previews})
    with renamed_fields(name_in_arguments):
        base_url, key = asked.origin.base_url, asked.origin.idempotency_key
        submission = Submission(caller.tenant_id, new, base_url, key, webhook_form=FORM)
        return await parts.submissions.submit(submission)


async def _output(parts: FalParts, job: Job, base_url: str) -> Response:
    if not job.status.is_final:
        return error_response(_IN_PROGRESS)
    headers = {"x-fal-request-id": job.id}
    if job.status is not JobStatus.SUCCEEDED:
        response = error_response(failure(job))
        response.headers.update(headers)
        return response
    output = json_response(await parts.serializer.result(job, base_url, is_inline(job)), headers=headers)
    return delivering(parts.store, job.id, output) if job.forget_delivered else output


def _streamed(parts: FalParts, messages: AsyncGenerator[dict[str, Any]]) -> EventSourceResponse:
    async def events() -> AsyncGenerator[ServerSentEvent]:
        async with aclosing(messages):
            async for message in messages:
                yield ServerSentEvent(orjson.dumps(message).decode())

    return EventSourceResponse(events(), ping=parts.config.ping_seconds, sep="\n")


async def _states(parts: FalParts, job: Job, follower: FalFollower) -> AsyncGenerator[dict[str, Any]]:
    last: dict[str, Any] | None = None
    async with aclosing(parts.job_watcher.watch(job)) as updates:
        async for update in updates:
            job = update if isinstance(update, Job) else job
            state = await parts.serializer.status(job, follower.urls, follower.logs)
            if state != last:
                last = state
                yield state


async def _outputs(parts: FalParts, job: Job, origin: RequestOrigin) -> AsyncGenerator[dict[str, Any]]:
    try:
        async with aclosing(parts.job_watcher.watch(job)) as updates:
            async for update in updates:
                if isinstance(update, Job):
                    job = update
                elif update.resource.type == "preview" and not update.resource.data.get("image"):
                    url = f"data:image/png;base64,{update.resource.data['b64']}"
                    yield {"images": [{"url": url, "content_type": "image/png"}], "request_id": job.id}
        if job.status is JobStatus.SUCCEEDED:
            yield {
                **await parts.serializer.result(job, origin.base_url, is_inline(job)),
                "request_id": job.id,
            }
        else:
            yield {"error": failure(job).detail, "request_id": job.id}
    finally:
        if not (job.status.is_final or origin.may_return):
            parts.background_tasks.start(parts.store.jobs.cancel(job.id))
