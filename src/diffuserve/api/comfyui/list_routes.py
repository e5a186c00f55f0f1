"""ComfyUI's routes that list what there is, and take images in."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from starlette.requests import ClientDisconnect

from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.quota import ClientCaller, SubmittingCaller
from diffuserve.api.comfyui.graphs import image_name
from diffuserve.api.comfyui.nodes import NODES, SAMPLERS, SCHEDULERS, Listed, object_info
from diffuserve.api.config import ApiConfig
from diffuserve.api.door.forms import FORM, MAX_FORM_BYTES, FormFile, parse_form
from diffuserve.api.door.json_route import JsonRoute, content_type_of, unsupported_media_type
from diffuserve.api.door.upload import BatchUploads
from diffuserve.api.files.intake import FileIntake, Received
from diffuserve.api.http.field_errors import validation_error
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.reads.adapter_names import AdapterNames
from diffuserve.api.reads.catalog import Catalog
from diffuserve.domain.jobs.job import IMAGE_GENERATE
from diffuserve.domain.jobs.kinds import KINDS
from diffuserve.jobs.store import JobStore

router = APIRouter(tags=["comfyui"], route_class=JsonRoute)

UPLOAD = "/upload/image"
_MOST_FILES = 200
_PNG_HEAD, _COLOR_TYPE, _WITH_ALPHA = b"\x89PNG\r\n\x1a\n", 25, (4, 6)
_FOLDERS = {"checkpoints": Listed.MODELS, "loras": Listed.ADAPTERS, "controlnet": Listed.CONTROLNETS}


@dataclass(frozen=True)
class NodeListParts:
    """Parts that these routes use."""

    config: ApiConfig
    store: JobStore
    catalog: Catalog
    adapters: AdapterNames
    uploads: BatchUploads
    intake: FileIntake


Used = Annotated[NodeListParts, Depends(Uses(NodeListParts))]


@router.get("/object_info", summary="List the nodes that are done here")
async def list_nodes(parts: Used, caller: ClientCaller) -> Response:
    """Return each node with its inputs and what they have to be one of."""
    listed = await _listed(parts, caller)
    return json_response({name: object_info(name, listed) for name in NODES})


@router.get("/object_info/{name}", summary="Get a node")
async def get_node(name: str, parts: Used, caller: ClientCaller) -> Response:
    """Return the node by its name, or an empty object if it is not done here."""
    known = {name: object_info(name, await _listed(parts, caller))} if name in NODES else {}
    return json_response(known)


async def _listed(parts: NodeListParts, caller: Caller) -> Mapping[Listed, Sequence[str]]:
    """Return what there is for this caller of everything that inputs choose from."""
    models = await parts.catalog.models()
    specs = [served.spec for served in models.values() if KINDS[IMAGE_GENERATE].is_made_by(served.spec)]
    adapters = {name for spec in specs for name in await parts.adapters.names_for(caller.tenant_id, spec)}
    samplers = {sampler for spec in specs for sampler in spec.samplers}
    files = await parts.store.files.list_files(tenant_id=caller.tenant_id, limit=_MOST_FILES)
    return {
        Listed.MODELS: sorted(spec.name for spec in specs),
        Listed.ADAPTERS: sorted(adapters),
        Listed.CONTROLNETS: sorted({name for spec in specs for name in spec.controlnets}),
        Listed.SAMPLERS: [name for name, ours in SAMPLERS.items() if samplers & {*ours}] or ["euler"],
        Listed.SCHEDULERS: SCHEDULERS,
        Listed.IMAGES: [image_name(file.id, None) for file in files],
    }


@router.get("/models", summary="List kinds of models")
async def list_folders(_caller: ClientCaller) -> Response:
    """List the folders that ComfyUI has such models in."""
    return json_response(list(_FOLDERS))


@router.get("/models/{folder}", summary="List models of a kind")
async def list_folder(folder: str, parts: Used, caller: ClientCaller) -> Response:
    """List the models of a kind; of others there are none."""
    kind = _FOLDERS.get(folder)
    return json_response([] if kind is None else (await _listed(parts, caller))[kind])


@router.get("/embeddings", name="list_embeddings", summary="List embeddings, of which there are none")
@router.get("/extensions", name="list_extensions", summary="List extensions, of which there are none")
async def list_none(_caller: ClientCaller) -> Response:
    """Return an empty list."""
    return json_response([])


@router.get("/features", summary="List features of the server, of which there are none")
async def get_features(_caller: ClientCaller) -> Response:
    """Return an empty object."""
    return json_response({})


@router.get("/system_stats", summary="Get facts about the server")
async def get_stats(parts: Used, _caller: ClientCaller) -> Response:
    """Return the version; devices are the workers' own, and not told."""
    versions = {"comfyui_version": f"diffuserve {parts.config.version}", "python_version": ""}
    unknown = {"pytorch_version": "", "embedded_python": False, "ram_total": 0, "ram_free": 0, "argv": []}
    return json_response({"system": {"os": "posix", **versions, **unknown}, "devices": []})


@router.post("/free", summary="Free memory, which workers do by themselves")
async def free_memory(_caller: ClientCaller) -> Response:
    """Do nothing."""
    return Response()


@router.post(UPLOAD, summary="Upload an image")
async def upload_image(request: Request, parts: Used, caller: SubmittingCaller) -> Response:
    """Store the image of a form; name it in LoadImage by the `name` in the response.

    The transparency of a PNG is stored beside it, as the mask that LoadImage has.
    """
    if content_type_of(request) != FORM:
        raise unsupported_media_type(request, FORM)
    most = parts.config.max_input_file_bytes + MAX_FORM_BYTES
    try:
        async with parts.uploads.received(request, caller.tenant_id, most, "send a smaller image") as body:
            form = await asyncio.to_thread(parse_form, request, body)
            files = [file for file in form.files if file.field == "image"]
            if len(files) != 1:
                raise validation_error(("body", "image"), "must be one file")
            name = await _stored(parts, caller.tenant_id, files[0])
    except ClientDisconnect:
        return Response(status_code=400)  # the client has disconnected and reads no response
    return json_response({"name": name, "subfolder": "", "type": "input"})


async def _stored(parts: NodeListParts, tenant_id: str, file: FormFile) -> str:
    """Return the name of an image that is stored. Raise what `FileIntake.add` raises."""
    content = file.content
    image = await parts.intake.add(tenant_id, Received("image", file.name, content))
    if not (content.startswith(_PNG_HEAD) and content[_COLOR_TYPE : _COLOR_TYPE + 1][0] in _WITH_ALPHA):
        return image_name(image.id, None)
    mask = await parts.intake.add(tenant_id, Received("image", file.name, content, "alpha"))
    return image_name(image.id, mask.id)
