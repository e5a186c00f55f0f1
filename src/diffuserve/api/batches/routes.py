"""Batches: many jobs in one call, their counts, and their results as JSON lines."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from diffuserve.api.auth.dependencies import BaseUrl
from diffuserve.api.auth.quota import ClientCaller, SubmittingCaller
from diffuserve.api.batches import submission
from diffuserve.api.batches.body_parser import OPENAPI_BODY, received_batch
from diffuserve.api.batches.request_bodies import BatchQuery
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.path_params import BatchId, checked_batch_id
from diffuserve.api.http.responses import json_response
from diffuserve.api.resources.serializers import batch_resource, page_of
from diffuserve.api.services import Services, ServicesDep
from diffuserve.api.submit.request_bodies import Storable
from diffuserve.domain.jobs.batch import BatchStatus
from diffuserve.domain.resources.batch import BatchPage, BatchResource, BatchResult

router = APIRouter(prefix="/v1/batches", tags=["batches"], route_class=JsonRoute)

_RESULTS_PER_READ = 200
_LINES = {"schema": {"type": "string", "description": BatchResult.__doc__}}
_RESULTS: dict[int | str, dict[str, Any]] = {200: {"content": {"application/jsonl": _LINES}}}


@router.post(
    "", summary="Submit a batch", status_code=202, response_model=BatchResource, openapi_extra=OPENAPI_BODY
)
async def submit_batch(
    request: Request,
    services: ServicesDep,
    caller: SubmittingCaller,
    base_url: BaseUrl,
    query: Annotated[BatchQuery, Query()],
    idempotency_key: Annotated[
        Annotated[str, Storable] | None,
        Header(min_length=1, max_length=255, description="The same key and body give the same batch."),
    ] = None,
) -> Response:
    """Submit up to 1,000 items as JSON, or up to 50,000 as JSON lines, whose options are in the query.

    Every item is checked before the first is stored. An interrupted call continues where it stopped when
    it is repeated with its `Idempotency-Key`.
    """
    tenant_id = caller.tenant_id
    try:
        async with received_batch(request, query, services, tenant_id) as received:
            batch = await submission.submit_batch(services, tenant_id, received, base_url, idempotency_key)
    except ClientDisconnect:
        return Response(status_code=400)  # the client has disconnected and reads no response
    resource = batch_resource(batch, base_url)
    return json_response(resource, 202, {"location": resource.urls.self})


@router.get("", summary="List batches, newest first", response_model=BatchPage)
async def list_batches(
    services: ServicesDep,
    caller: ClientCaller,
    base_url: BaseUrl,
    after: Annotated[str | None, Query(description="The `next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """List the caller's batches."""
    batches = await services.store.batches.list_batches(
        tenant_id=caller.scope, after=None if after is None else checked_batch_id(after), limit=limit + 1
    )
    resources = [batch_resource(batch, base_url) for batch in batches[:limit]]
    return json_response(page_of(BatchPage, resources, has_more=len(batches) > limit))


@router.get("/{batch_id}", summary="Get a batch", response_model=BatchResource)
async def get_batch(
    batch_id: BatchId, services: ServicesDep, caller: ClientCaller, base_url: BaseUrl
) -> Response:
    """Get the batch with the number of its items by status."""
    return json_response(batch_resource(await services.store.batches.get(batch_id, caller.scope), base_url))


@router.post(
    "/{batch_id}/cancel",
    summary="Cancel a batch",
    status_code=202,
    response_model=BatchResource,
    responses={200: {"model": BatchResource, "description": "The batch has ended already."}},
)
async def cancel_batch(
    batch_id: BatchId, services: ServicesDep, caller: ClientCaller, base_url: BaseUrl
) -> Response:
    """Cancel every item, as single jobs are canceled; safe to repeat."""
    batch = await services.store.batches.cancel(batch_id, caller.scope)
    if batch.status is BatchStatus.CANCELING:
        services.background_tasks.start(services.store.batches.cancel_items(batch.id))
    return json_response(batch_resource(batch, base_url), 200 if batch.finished_at is not None else 202)


@router.get(
    "/{batch_id}/results",
    summary="Fetch a batch's results",
    response_class=StreamingResponse,
    responses=_RESULTS,
)
async def get_results(
    batch_id: BatchId, services: ServicesDep, caller: ClientCaller, base_url: BaseUrl
) -> StreamingResponse:
    """Stream a line of JSON for every item that has ended, in the items' order."""
    await services.store.batches.get(batch_id, caller.scope)
    return StreamingResponse(_lines(services, batch_id, base_url), media_type="application/jsonl")


async def _lines(services: Services, batch_id: str, base_url: str) -> AsyncIterator[bytes]:
    after = ""
    while jobs := await services.store.batches.ended_items(batch_id, after, _RESULTS_PER_READ):
        results = [await services.serializer.batch_result(job, base_url) for job in jobs]
        yield b"".join(orjson.dumps(result, option=orjson.OPT_APPEND_NEWLINE) for result in results)
        after = jobs[-1].id
