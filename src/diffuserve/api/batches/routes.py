"""Batches: many jobs in one call, their counts, and their results as JSON lines."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from diffuserve.api.auth.dependencies import BaseUrl
from diffuserve.api.auth.quota import ClientCaller, SubmittingCaller
from diffuserve.api.batches.body_parser import OPENAPI_BODY, received_batch
from diffuserve.api.batches.file_batch_body import FileBatchBody
from diffuserve.api.batches.file_batch_resources import FileBatchPage, FileBatchResource
from diffuserve.api.batches.file_batch_routes import FileBatchParts, create_file_batch, file_batches_page
from diffuserve.api.batches.request_bodies import BatchQuery
from diffuserve.api.batches.submission import BatchSubmissions
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.door.origin import IdempotencyKey
from diffuserve.api.door.upload import BatchUploads
from diffuserve.api.http.background_tasks import BackgroundTasks
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.path_params import BatchId, checked_batch_id
from diffuserve.api.http.problems import SHARED_RESPONSES, speaks_openai
from diffuserve.api.http.responses import json_response
from diffuserve.api.resources.serializers import JobSerializer, batch_resource, page_of
from diffuserve.domain.jobs.batch import BatchStatus
from diffuserve.domain.resources.batch import BatchPage, BatchResource, BatchResult
from diffuserve.jobs.store import JobStore

router = APIRouter(
    prefix="/v1/batches", tags=["batches"], route_class=JsonRoute, responses=dict(SHARED_RESPONSES)
)


@dataclass(frozen=True)
class BatchParts:
    """Parts that these routes use."""

    store: JobStore
    submissions: BatchSubmissions
    batch_uploads: BatchUploads
    serializer: JobSerializer
    background_tasks: BackgroundTasks
    of_files: FileBatchParts


Used = Annotated[BatchParts, Depends(Uses(BatchParts))]


_RESULTS_PER_READ = 200


class JsonLines(StreamingResponse):
    """A line of JSON for each of many values."""

    media_type = "application/jsonl"


@router.post(
    "",
    summary="Submit a batch",
    status_code=202,
    response_model=BatchResource,
    responses={200: {"model": FileBatchResource, "description": "It is a batch from a file."}},
    openapi_extra=OPENAPI_BODY,
)
async def submit_batch(
    request: Request,
    parts: Used,
    caller: SubmittingCaller,
    base_url: BaseUrl,
    query: Annotated[BatchQuery, Query()],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Submit up to 1,000 items as JSON, or up to 50,000 as JSON lines, whose options are in the query.

    Every item is checked before the first is stored. An interrupted call continues where it stopped when
    it is repeated with its `Idempotency-Key`. JSON with an `input_file_id` is a batch of OpenAI's API, whose
    items are the lines of that file: the response is `200` with OpenAI's object, and the file is read then.
    """
    tenant_id = caller.tenant_id
    try:
        async with received_batch(request, query, parts.batch_uploads, tenant_id) as received:
            if isinstance(received, FileBatchBody):
                return await create_file_batch(parts.of_files, caller, received, base_url, idempotency_key)
            batch = await parts.submissions.submit(tenant_id, received, base_url, idempotency_key)
    except ClientDisconnect:
        return Response(status_code=400)  # the client has disconnected and reads no response
    resource = batch_resource(batch, base_url)
    return json_response(resource, 202, {"location": resource.urls.self})


@router.get("", summary="List batches, newest first", response_model=BatchPage | FileBatchPage)
async def list_batches(
    request: Request,
    parts: Used,
    caller: ClientCaller,
    base_url: BaseUrl,
    after: Annotated[str | None, Query(description="The `next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """List the caller's batches; to OpenAI's clients those from files, in that API's form."""
    if speaks_openai(request):
        return await file_batches_page(parts.of_files, caller, after, limit)
    batches = await parts.store.batches.list_batches(
        tenant_id=caller.scope, after=None if after is None else checked_batch_id(after), limit=limit + 1
    )
    resources = [batch_resource(batch, base_url) for batch in batches[:limit]]
    return json_response(page_of(BatchPage, resources, has_more=len(batches) > limit))


@router.get("/{batch_id}", summary="Get a batch", response_model=BatchResource)
async def get_batch(batch_id: BatchId, parts: Used, caller: ClientCaller, base_url: BaseUrl) -> Response:
    """Get the batch with the number of its items by status."""
    return json_response(batch_resource(await parts.store.batches.get(batch_id, caller.scope), base_url))


@router.post(
    "/{batch_id}/cancel",
    summary="Cancel a batch",
    status_code=202,
    response_model=BatchResource,
    responses={200: {"model": BatchResource, "description": "The batch has ended already."}},
)
async def cancel_batch(batch_id: BatchId, parts: Used, caller: ClientCaller, base_url: BaseUrl) -> Response:
    """Cancel every item, as single jobs are canceled; safe to repeat."""
    batch = await parts.store.batches.cancel(batch_id, caller.scope)
    if batch.status is BatchStatus.CANCELING:
        parts.background_tasks.start(parts.store.batches.cancel_items(batch.id))
    return json_response(batch_resource(batch, base_url), 200 if batch.finished_at is not None else 202)


@router.get(
    "/{batch_id}/results",
    summary="Fetch a batch's results",
    response_class=JsonLines,
    responses={200: {"model": BatchResult, "description": "Each line."}},
)
async def get_batch_results(
    batch_id: BatchId, parts: Used, caller: ClientCaller, base_url: BaseUrl
) -> JsonLines:
    """Stream a line of JSON for every item that has ended, in the items' order."""
    await parts.store.batches.get(batch_id, caller.scope)
    return JsonLines(_lines(parts, batch_id, base_url))


async def _lines(parts: BatchParts, batch_id: str, base_url: str) -> AsyncIterator[bytes]:
    after = ""
    while jobs := await parts.store.batches.ended_items(batch_id, after, _RESULTS_PER_READ):
        results = [await parts.serializer.batch_result(job, base_url) for job in jobs]
        yield b"".join(orjson.dumps(result, option=orjson.OPT_APPEND_NEWLINE) for result in results)
        after = jobs[-1].id
