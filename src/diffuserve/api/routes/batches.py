"""Batches: many jobs in one call, their counts, and their results as JSON lines."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from diffuserve.api.auth.dependencies import BaseUrl, Client
from diffuserve.api.auth.quota import Submitter
from diffuserve.api.batches.body import BODIES, read_batch
from diffuserve.api.batches.schemas import BatchPageShape, BatchQuery, BatchResult, BatchShape
from diffuserve.api.batches.submission import take_in
from diffuserve.api.path_params import BatchId, known_batch_id
from diffuserve.api.responses import json_response
from diffuserve.api.serializers import batch_document
from diffuserve.api.services import Services, ServicesOf
from diffuserve.domain.batch import BatchStatus

router = APIRouter(prefix="/v1/batches", tags=["batches"])

_PAGE = 200
_LINES = {"schema": {"type": "string", "description": BatchResult.__doc__}}
_RESULTS: dict[int | str, dict[str, Any]] = {200: {"content": {"application/jsonl": _LINES}}}


@router.post("", summary="Submit a batch", status_code=202, response_model=BatchShape, openapi_extra=BODIES)
async def submit_batch(
    request: Request,
    services: ServicesOf,
    caller: Submitter,
    base_url: BaseUrl,
    query: Annotated[BatchQuery, Query()],
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=255, description="The same key and body give the same batch."),
    ] = None,
) -> Response:
    """Up to 1,000 items as JSON, or up to 50,000 as JSON lines, whose options stand in the query.

    Every item is checked before the first is taken in. A call that was cut off goes on where it was
    when it is repeated with its `Idempotency-Key`.
    """
    async with services.batch_slots:
        options, items, place = await read_batch(request, query, services.config)
        batch = await take_in(services, caller.tenant_id, options, items, place, base_url, idempotency_key)
    document = batch_document(batch, base_url)
    return json_response(document, 202, {"location": document["urls"]["self"]})


@router.get("", summary="List batches, newest first", response_model=BatchPageShape)
async def list_batches(
    services: ServicesOf,
    caller: Client,
    base_url: BaseUrl,
    after: Annotated[str | None, Query(description="The `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    found = await services.store.batches.list_batches(
        tenant_id=caller.scope, after=None if after is None else known_batch_id(after), limit=limit + 1
    )
    page, has_more = found[:limit], len(found) > limit
    return json_response(
        {
            "data": [batch_document(one, base_url) for one in page],
            "has_more": has_more,
            "next": page[-1].id if has_more else None,
        }
    )


@router.get("/{batch_id}", summary="Get a batch", response_model=BatchShape)
async def get_batch(batch_id: BatchId, services: ServicesOf, caller: Client, base_url: BaseUrl) -> Response:
    return json_response(batch_document(await services.store.batches.get(batch_id, caller.scope), base_url))


@router.post(
    "/{batch_id}/cancel",
    summary="Cancel a batch",
    status_code=202,
    response_model=BatchShape,
    responses={200: {"model": BatchShape, "description": "It has ended already."}},
)
async def cancel_batch(
    batch_id: BatchId, services: ServicesOf, caller: Client, base_url: BaseUrl
) -> Response:
    """Its items are canceled as single jobs are; may be repeated."""
    batch = await services.store.batches.cancel(batch_id, caller.scope)
    if batch.status is BatchStatus.CANCELING:
        services.background.start(services.store.batches.cancel_items(batch.id))
    return json_response(batch_document(batch, base_url), 200 if batch.finished_at is not None else 202)


@router.get(
    "/{batch_id}/results",
    summary="Fetch a batch's results",
    response_class=StreamingResponse,
    responses=_RESULTS,
)
async def get_results(
    batch_id: BatchId, services: ServicesOf, caller: Client, base_url: BaseUrl
) -> StreamingResponse:
    """A line of JSON for every item that has ended, in the items' order."""
    await services.store.batches.get(batch_id, caller.scope)
    return StreamingResponse(_lines(services, batch_id, base_url), media_type="application/jsonl")


async def _lines(services: Services, batch_id: str, base_url: str) -> AsyncIterator[bytes]:
    after = ""
    while jobs := await services.store.batches.ended_items(batch_id, after, _PAGE):
        documents = [await services.documents.batch_line(job, base_url) for job in jobs]
        yield b"".join(orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE) for one in documents)
        after = jobs[-1].id
