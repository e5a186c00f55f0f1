"""Adapters: list, get, upload, delete."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from starlette.requests import ClientDisconnect

from diffuserve.api.auth.quota import ClientCaller, SubmittingCaller
from diffuserve.api.door.json_route import JsonRoute, content_type_of, unsupported_media_type
from diffuserve.api.files.adapter_intake import AdapterIntake
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.reads.adapter_names import AdapterNames
from diffuserve.api.reads.catalog import Catalog
from diffuserve.domain.errors import AdapterNotFound
from diffuserve.domain.models.adapter_entry import AdapterEntry
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.adapter_use import ADAPTER_NAME
from diffuserve.domain.resources.adapter import AdapterList, AdapterOrigin, AdapterResource, DeletedAdapter
from diffuserve.domain.text.nearest import did_you_mean
from diffuserve.jobs.reads.operations import OfferedModel

router = APIRouter(prefix="/v1/adapters", tags=["adapters"], route_class=JsonRoute)


@dataclass(frozen=True)
class AdapterParts:
    """Parts that these routes use."""

    catalog: Catalog
    adapters: AdapterNames
    adapter_intake: AdapterIntake


Used = Annotated[AdapterParts, Depends(Uses(AdapterParts))]
AdapterName = Annotated[str, Path(pattern=f"^{ADAPTER_NAME.pattern}$", description="Name of the adapter.")]

_FILE = "application/octet-stream"
_OPENAPI_BODY = {
    "requestBody": {
        "required": True,
        "content": {_FILE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("", summary="List adapters", response_model=AdapterList)
async def list_adapters(parts: Used, caller: ClientCaller) -> Response:
    """List the adapters that the caller's requests may name: its own, the public ones, then workers'."""
    named = await _named(parts, caller.tenant_id)
    return json_response(AdapterList(data=tuple(named[name] for name in sorted(named))))


@router.get("/{name}", summary="Get an adapter", response_model=AdapterResource)
async def get_adapter(name: AdapterName, parts: Used, caller: ClientCaller) -> Response:
    """Get what is known of an adapter that the caller's requests may name."""
    named = await _named(parts, caller.tenant_id)
    if name not in named:
        raise AdapterNotFound(
            f"there is no adapter {name!r}{did_you_mean(name, named)}; GET /v1/adapters lists all"
        )
    return json_response(named[name])


@router.post(
    "",
    summary="Upload an adapter",
    status_code=201,
    response_model=AdapterResource,
    openapi_extra=_OPENAPI_BODY,
)
async def upload_adapter(
    request: Request,
    parts: Used,
    caller: SubmittingCaller,
    name: Annotated[str, Query(pattern=f"^{ADAPTER_NAME.pattern}$", description="Name that requests give.")],
) -> Response:
    """Store the safetensors file in the body as an adapter of the caller's, in place of one of that name.

    An operator's is public. What cannot be applied is refused by the name of a tensor.
    """
    parts.adapter_intake.check_allowed(caller)
    if content_type_of(request) != _FILE:
        raise unsupported_media_type(request, _FILE)
    try:
        entry = await parts.adapter_intake.add(request, caller, name)
    except ClientDisconnect:
        return Response(status_code=400)  # the client has disconnected and reads no response
    return json_response(_resource(entry, await parts.catalog.models()), 201)


@router.delete("/{name}", summary="Delete an adapter", response_model=DeletedAdapter)
async def delete_adapter(name: AdapterName, parts: Used, caller: ClientCaller) -> Response:
    """Delete an adapter of the caller's; jobs that were accepted with it still draw with it."""
    await parts.adapter_intake.remove(caller, name)
    return json_response(DeletedAdapter(name=name))


async def _named(parts: AdapterParts, tenant_id: str) -> dict[str, AdapterResource]:
    """Return what the names of a tenant's requests mean; the store's hide others."""
    models = await parts.catalog.models()
    others = await parts.adapters.beside_store(served.spec for served in models.values())
    stored = await parts.adapters.visible(tenant_id)
    return {name: _of_workers(name, *found) for name, found in others.items()} | {
        entry.name: _resource(entry, models) for entry in stored
    }


def _of_workers(name: str, origin: AdapterOrigin, specs: Sequence[ModelSpec]) -> AdapterResource:
    return AdapterResource(
        name=name,
        origin=origin,
        is_public=True,
        families=tuple(sorted({spec.family for spec in specs})),
        models=tuple(sorted(spec.name for spec in specs)),
    )


def _resource(entry: AdapterEntry, models: Mapping[str, OfferedModel]) -> AdapterResource:
    fitting = [name for name, served in models.items() if entry.fits(served.spec)]
    return AdapterResource(
        name=entry.name,
        origin="store",
        is_public=entry.tenant is None,
        digest=entry.digest,
        bytes=entry.num_bytes,
        families=entry.families,
        model=entry.model,
        models=tuple(sorted(fitting)),
        rank=entry.rank,
        num_layers=entry.num_layers,
        created_at=int(entry.created_at),
    )
