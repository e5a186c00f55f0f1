"""Uploaded images: upload, get, list, download, delete."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from starlette.requests import ClientDisconnect

from diffuserve.api.auth.quota import ClientCaller, SubmittingCaller
from diffuserve.api.config import ApiConfig
from diffuserve.api.door.forms import FORM, MAX_FORM_BYTES, Form, parse_form
from diffuserve.api.door.json_route import JsonRoute, content_type_of, unsupported_media_type
from diffuserve.api.door.upload import BatchUploads
from diffuserve.api.files.intake import FileIntake, Received
from diffuserve.api.files.serving import Part, StoredContent, file_responses, serve
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.path_params import FileId, checked_file_id
from diffuserve.api.http.responses import json_response
from diffuserve.api.resources.serializers import file_resource, page_of
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.input_file import CONTENT_TYPE, InputFile
from diffuserve.domain.resources.file import DeletedFile, FilePage, FileResource
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import ArtifactStore, input_folder, input_key

router = APIRouter(prefix="/v1/files", tags=["files"], route_class=JsonRoute)


@dataclass(frozen=True)
class FileParts:
    """Parts that these routes use."""

    store: JobStore
    artifacts: ArtifactStore
    config: ApiConfig
    batch_uploads: BatchUploads
    file_intake: FileIntake


Used = Annotated[FileParts, Depends(Uses(FileParts))]


_IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp")
_FIELD = "file"
_BINARY = {"type": "string", "format": "binary"}
_FORM_SCHEMA = {
    "type": "object",
    "required": [_FIELD],
    "properties": {
        _FIELD: _BINARY,
        "purpose": {"type": "string", "description": "Accepted and ignored: OpenAI's client sends it."},
    },
}
_OPENAPI_BODY = {
    "requestBody": {
        "required": True,
        "content": {FORM: {"schema": _FORM_SCHEMA}} | {kind: {"schema": _BINARY} for kind in _IMAGE_TYPES},
    }
}


@router.post(
    "", summary="Upload an image", status_code=201, response_model=FileResource, openapi_extra=_OPENAPI_BODY
)
async def upload_file(
    request: Request,
    parts: Used,
    caller: SubmittingCaller,
    filename: Annotated[str, Query(max_length=200, description="Name of an image sent as it is.")] = "image",
) -> Response:
    """Store a PNG, JPEG or WebP image for `input.image` and other images of jobs, as a form or as it is.

    It is turned upright, and stored as PNG without transparency and metadata. The same image is one file,
    however often it is uploaded.
    """
    content_type = content_type_of(request)
    if content_type != FORM and content_type not in _IMAGE_TYPES:
        raise unsupported_media_type(request, FORM, *_IMAGE_TYPES)
    try:
        file = await _take_in(request, parts, caller.tenant_id, filename)
    except ClientDisconnect:
        return Response(status_code=400)  # the client has disconnected and reads no response
    return json_response(file_resource(file), 201)


@router.get("", summary="List files, newest first", response_model=FilePage)
async def list_files(
    parts: Used,
    caller: ClientCaller,
    after: Annotated[str | None, Query(description="The `next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """List the caller's uploaded images."""
    files = await parts.store.files.list_files(
        tenant_id=caller.scope, after=None if after is None else checked_file_id(after), limit=limit + 1
    )
    resources = [file_resource(file) for file in files[:limit]]
    return json_response(page_of(FilePage, resources, has_more=len(files) > limit))


@router.get("/{file_id}", summary="Get a file", response_model=FileResource)
async def get_file(file_id: FileId, parts: Used, caller: ClientCaller) -> Response:
    """Get what is known of an uploaded image."""
    return json_response(file_resource(await parts.store.files.get(file_id, caller.scope)))


@router.get(
    "/{file_id}/content",
    summary="Fetch an uploaded image",
    response_class=StreamingResponse,
    responses=file_responses(CONTENT_TYPE),
)
async def get_content(file_id: FileId, parts: Used, caller: ClientCaller, part: Part) -> Response:
    """Fetch the stored image, or be redirected to where it is stored."""
    file = await parts.store.files.get(file_id, caller.scope)
    key = input_key(file.id)
    url = await parts.artifacts.download_url(key, parts.config.result_url_seconds)
    if url is not None:
        return RedirectResponse(url)
    return await serve(parts.artifacts, StoredContent(key, f"{file.id}.png", file.sha256), part)


@router.delete("/{file_id}", summary="Delete a file", response_model=DeletedFile)
async def delete_file(file_id: FileId, parts: Used, caller: ClientCaller) -> Response:
    """Delete an uploaded image; one that an unfinished job needs is refused with 409."""
    await parts.store.files.delete(file_id, caller.scope)
    await parts.artifacts.delete(input_folder(file_id))
    return json_response(DeletedFile(id=file_id))


async def _take_in(request: Request, parts: FileParts, tenant_id: str, filename: str) -> InputFile:
    """Receive the body in bounded time and memory, and store the image in it.

    The body counts as under way until then, so that images which wait for their turn are bounded too.
    """
    most = parts.config.max_input_file_bytes
    is_form = content_type_of(request) == FORM
    limit = most + MAX_FORM_BYTES if is_form else most
    async with parts.batch_uploads.received(request, tenant_id, limit, "send a smaller image") as body:
        if is_form:
            received = _image_of(await asyncio.to_thread(parse_form, request, body))
        else:
            received = Received(_FIELD, filename, body[:])
        return await parts.file_intake.add(tenant_id, received)


def _image_of(form: Form) -> Received:
    images = [file for file in form.files if file.field == _FIELD]
    if len(images) != 1:
        raise InvalidParams(_FIELD, len(images), "send one image in the field `file` of the form")
    return Received(_FIELD, images[0].name, images[0].content)
