"""Files: images that are uploaded for jobs, and the JSON lines that batches read and write."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from starlette.requests import ClientDisconnect

from diffuserve.api.auth.quota import ClientCaller, SubmittingCaller
from diffuserve.api.config import ApiConfig
from diffuserve.api.door.forms import FORM, MAX_FORM_BYTES, Form, FormFile, parse_form
from diffuserve.api.door.json_route import JsonRoute, content_type_of, unsupported_media_type
from diffuserve.api.door.upload import BatchUploads
from diffuserve.api.files.expiry import CREATED_AT, MAX_SECONDS, MIN_SECONDS, kept_seconds
from diffuserve.api.files.intake import FileIntake, Received
from diffuserve.api.files.lines_intake import LinesIntake
from diffuserve.api.files.serving import Part, StoredContent, file_responses, serve
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.path_params import FileId, checked_file_id
from diffuserve.api.http.problems import SHARED_RESPONSES, speaks_openai
from diffuserve.api.http.responses import json_response
from diffuserve.api.resources.serializers import file_resource, page_of
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.input_file import CONTENT_TYPE, LINES_CONTENT_TYPE, FilePurpose, InputFile
from diffuserve.domain.resources.file import DeletedFile, FilePage, FileResource
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import ArtifactStore, input_folder, input_key, lines_key

router = APIRouter(
    prefix="/v1/files", tags=["files"], route_class=JsonRoute, responses=dict(SHARED_RESPONSES)
)


@dataclass(frozen=True)
class FileParts:
    """Parts that these routes use."""

    store: JobStore
    artifacts: ArtifactStore
    config: ApiConfig
    batch_uploads: BatchUploads
    file_intake: FileIntake
    lines: LinesIntake


Used = Annotated[FileParts, Depends(Uses(FileParts))]


_IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp")
_FIELD = "file"
_PAGE = 200
_REMEDY = "send a smaller file"
_BINARY = {"type": "string", "format": "binary"}
_FORM_SCHEMA = {
    "type": "object",
    "required": [_FIELD],
    "properties": {
        _FIELD: _BINARY,
        "purpose": {
            "type": "string",
            "description": "`batch` for the JSON lines of a batch; everything else is an image.",
        },
        "expires_after[anchor]": {"type": "string", "enum": [CREATED_AT]},
        "expires_after[seconds]": {
            "type": "integer",
            "minimum": MIN_SECONDS,
            "maximum": MAX_SECONDS,
            "description": "How long lines are kept; by default as long as the longest-lived jobs.",
        },
    },
}
_OPENAPI_BODY = {
    "requestBody": {
        "required": True,
        "content": {FORM: {"schema": _FORM_SCHEMA}} | {kind: {"schema": _BINARY} for kind in _IMAGE_TYPES},
    }
}


@router.post(
    "",
    summary="Upload an image, or the lines of a batch",
    status_code=201,
    response_model=FileResource,
    openapi_extra=_OPENAPI_BODY,
)
async def upload_file(
    request: Request,
    parts: Used,
    caller: SubmittingCaller,
    filename: Annotated[str, Query(max_length=200, description="Name of an image sent as it is.")] = "image",
) -> Response:
    """Store a PNG, JPEG or WebP image for `input.image` and other images of jobs, as a form or as it is.

    It is turned upright, and stored as PNG without transparency and metadata. The same image is one file,
    however often it is uploaded. A form with the purpose `batch` brings JSON lines, as OpenAI's API has them.
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
async def list_files(  # noqa: PLR0913 (each is a part of the query)
    request: Request,
    parts: Used,
    caller: ClientCaller,
    after: Annotated[str | None, Query(description="The `next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="A page has 200 at most.")] = 50,
    purpose: Annotated[
        FilePurpose | None, Query(description="By default images, and for OpenAI's clients all files.")
    ] = None,
    order: Annotated[Literal["asc", "desc"], Query(description="`desc` for the newest first.")] = "desc",
) -> Response:
    """List the caller's files."""
    usual = tuple(FilePurpose) if speaks_openai(request) else (FilePurpose.VISION,)
    limit = min(limit, _PAGE)
    files = await parts.store.files.list_files(
        tenant_id=caller.scope,
        after=None if after is None else checked_file_id(after),
        limit=limit + 1,
        purposes=usual if purpose is None else (purpose,),
        oldest_first=order == "asc",
    )
    resources = [file_resource(file) for file in files[:limit]]
    return json_response(page_of(FilePage, resources, has_more=len(files) > limit))


@router.get("/{file_id}", summary="Get a file", response_model=FileResource)
async def get_file(file_id: FileId, parts: Used, caller: ClientCaller) -> Response:
    """Get what is known of a file."""
    return json_response(file_resource(await parts.store.files.get(file_id, caller.scope)))


@router.get(
    "/{file_id}/content",
    summary="Fetch a file",
    response_class=StreamingResponse,
    responses=file_responses(CONTENT_TYPE, LINES_CONTENT_TYPE),
)
async def get_file_content(file_id: FileId, parts: Used, caller: ClientCaller, part: Part) -> Response:
    """Fetch the stored image or the lines, or be redirected to where they are stored."""
    file = await parts.store.files.get(file_id, caller.scope)
    key, suffix = (input_key(file.id), "png") if file.is_image else (lines_key(file.id), "jsonl")
    url = await parts.artifacts.download_url(key, parts.config.result_url_seconds)
    if url is not None:
        return RedirectResponse(url)
    return await serve(parts.artifacts, StoredContent(key, f"{file.id}.{suffix}", file.sha256), part)


@router.delete("/{file_id}", summary="Delete a file", response_model=DeletedFile)
async def delete_file(file_id: FileId, parts: Used, caller: ClientCaller) -> Response:
    """Delete a file; one that an unfinished job or batch needs is refused with 409."""
    await parts.store.files.delete(file_id, caller.scope)
    await parts.artifacts.delete(input_folder(file_id))
    return json_response(DeletedFile(id=file_id))


async def _take_in(request: Request, parts: FileParts, tenant_id: str, filename: str) -> InputFile:
    """Receive the body in bounded time and memory, and store what is in it.

    The body counts as under way until then, so that images which wait for their turn are bounded too.
    """
    is_form = content_type_of(request) == FORM
    async with parts.batch_uploads.received(request, tenant_id, _most(parts, is_form), _REMEDY) as body:
        if not is_form:
            return await parts.file_intake.add(tenant_id, Received(_FIELD, filename, body[:]))
        form = await asyncio.to_thread(parse_form, request, body)
        file = _file_of(form)
        if form.texts.get("purpose") == [FilePurpose.BATCH]:
            seconds = kept_seconds(form)
            return await parts.lines.add(tenant_id, file.name, file.chunks(), len(file.span), seconds)
        parts.file_intake.check_size(_FIELD, file.name, len(file.span))  # before it is read into memory
        return await parts.file_intake.add(tenant_id, Received(_FIELD, file.name, file.content))


def _most(parts: FileParts, is_form: bool) -> int:
    """Return how many bytes a body may have: what a form brings is known only once it is there."""
    config = parts.config
    if not is_form:
        return config.max_input_file_bytes
    return max(config.max_input_file_bytes, config.max_lines_bytes) + MAX_FORM_BYTES


def _file_of(form: Form) -> FormFile:
    files = [file for file in form.files if file.field == _FIELD]
    if len(files) != 1:
        raise InvalidParams(_FIELD, len(files), "send one file in the field `file` of the form")
    return files[0]
