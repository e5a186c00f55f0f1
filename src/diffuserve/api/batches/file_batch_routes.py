"""Batches from files, as OpenAI's client gets and cancels them.

Their ids, `batch_file_…`, tell them from the server's own. Those routes that both have, the creation and the
list, are in `routes.py`.
"""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.quota import ClientCaller
from diffuserve.api.batches.file_batch_body import FileBatchBody
from diffuserve.api.batches.file_batch_resources import (
    FileBatchResource,
    file_batch_page,
    file_batch_resource,
)
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.files.lines_intake import LinesIntake
from diffuserve.api.http.openai_errors import OPENAI_ERROR_RESPONSES
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.outbound.address_policy import AddressPolicy
from diffuserve.api.submit.submission import fingerprint
from diffuserve.domain.errors import BatchNotFound
from diffuserve.domain.jobs.file_batch import batch_id_of
from diffuserve.jobs.queue.idempotency import Stamp
from diffuserve.jobs.store import JobStore

router = APIRouter(
    prefix="/v1/batches", tags=["openai"], route_class=JsonRoute, responses=dict(OPENAI_ERROR_RESPONSES)
)


@dataclass(frozen=True)
class FileBatchParts:
    """Parts that these routes use."""

    store: JobStore
    lines: LinesIntake
    address_policy: AddressPolicy


Used = Annotated[FileBatchParts, Depends(Uses(FileBatchParts))]
_Digits = Annotated[str, Path(max_length=64, description="Rest of the batch's id.")]


@router.get("/batch_file_{digits}", summary="Get a batch from a file", response_model=FileBatchResource)
async def get_file_batch(digits: _Digits, parts: Used, caller: ClientCaller) -> Response:
    """Get the batch with the number of its lines by what became of them."""
    batch = await parts.store.file_batches.get(_checked_id(f"batch_file_{digits}"), caller.scope)
    return json_response(file_batch_resource(batch))


@router.post(
    "/batch_file_{digits}/cancel", summary="Cancel a batch from a file", response_model=FileBatchResource
)
async def cancel_file_batch(digits: _Digits, parts: Used, caller: ClientCaller) -> Response:
    """Run no more of its lines; the files of what was done until then follow within seconds."""
    batch = await parts.store.file_batches.cancel(_checked_id(f"batch_file_{digits}"), caller.scope)
    return json_response(file_batch_resource(batch))


async def create_file_batch(
    parts: FileBatchParts, caller: Caller, body: FileBatchBody, base_url: str, idempotency_key: str | None
) -> Response:
    """Enter a batch, whose file is read afterwards. Raise `InvalidParams` for a forbidden URL."""
    if body.webhook_url is not None:
        parts.address_policy.check("webhook_url", body.webhook_url)
    new = body.new_batch(caller.tenant_id, parts.lines.usual_seconds, base_url)
    stamp = Stamp(caller.tenant_id, idempotency_key, fingerprint(body)) if idempotency_key else None
    return json_response(file_batch_resource(await parts.store.file_batches.create(new, stamp)))


async def file_batches_page(parts: FileBatchParts, caller: Caller, after: str | None, limit: int) -> Response:
    """List the caller's batches from files."""
    last = None if after is None else _checked_id(after)
    batches = await parts.store.file_batches.list_batches(tenant_id=caller.scope, after=last, limit=limit + 1)
    return json_response(file_batch_page(batches[:limit], has_more=len(batches) > limit))


def _checked_id(file_batch_id: str) -> str:
    """Return the id of the server's own batch. Raise `BatchNotFound` for a malformed one."""
    batch_id = batch_id_of(file_batch_id)
    if batch_id is None:
        raise BatchNotFound(f"no batch {file_batch_id!r}")
    return batch_id
