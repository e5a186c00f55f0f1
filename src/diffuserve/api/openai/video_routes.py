"""OpenAI's video API: clips as jobs that are created, polled, fetched, remixed and deleted."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.dependencies import BaseUrl
from diffuserve.api.auth.quota import ClientCaller, SubmittingCaller
from diffuserve.api.config import ApiConfig
from diffuserve.api.door.forms import FORM
from diffuserve.api.door.json_route import JsonRoute, content_type_of, is_json
from diffuserve.api.door.origin import Origin, RequestOrigin
from diffuserve.api.files.job_files import JobFiles
from diffuserve.api.files.serving import Part, file_responses
from diffuserve.api.http.openai_errors import OPENAI_ERROR_RESPONSES
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.openai.extensions import Extensions
from diffuserve.api.openai.fitting import fitted
from diffuserve.api.openai.resources import (
    DeletedOpenAIVideo,
    OpenAIVideo,
    OpenAIVideoPage,
)
from diffuserve.api.openai.schemas import extension_schema, video_edit_schema, video_schema
from diffuserve.api.openai.uploads import ImageBodies, video_fields_of
from diffuserve.api.openai.video_bodies import ExtensionBody, RemixBody, VideoBody, VideoEditBody
from diffuserve.api.openai.video_ids import VideoId, job_id_of, no_such_video
from diffuserve.api.openai.videos import VideoParts, file_of, page_of_videos, video_of
from diffuserve.api.reads.catalog import Catalog
from diffuserve.api.submit.submission import Submission, Submissions, renamed_fields
from diffuserve.domain.errors import InvalidParams, JobNotFound, NotFound
from diffuserve.domain.jobs.job import VIDEO_GENERATE, Job
from diffuserve.domain.jobs.video_ids import video_id_of
from diffuserve.domain.models.tiers import TierPolicy
from diffuserve.jobs.store import JobStore

Taken = TypeVar("Taken")

router = APIRouter(
    prefix="/v1/videos", tags=["openai"], route_class=JsonRoute, responses=dict(OPENAI_ERROR_RESPONSES)
)

UPLOADS = frozenset({router.prefix, f"{router.prefix}/edits", f"{router.prefix}/extensions"})
"""Paths whose bodies bring images, and are limited by their routes."""

_NO_CHARACTERS = "these models know no characters; show who it is with input_reference or image_prompts"
_NO_CLIP = (
    'give the id of a clip that was generated here, as {"id": "video_x"}, or its file as it was fetched'
)
_NUM_KNOWN = 200  # the caller's newest clips, which are recognized by their files
_DRAWN_ANEW = "drawn from the noise of {}, whose frames are not read"
_EXTENSION_ALONE = "this is the extension alone; it begins with the last frame of {}"
Variant = Literal["video", "thumbnail", "spritesheet"]
_FIELDS = {
    "kind": "model",
    "width": "size",
    "height": "size",
    "num_frames": "seconds",
    "image": "input_reference",
    "webhook.url": "webhook_url",
}


@dataclass(frozen=True)
class ClipParts:
    """Parts that these routes use."""

    config: ApiConfig
    store: JobStore
    videos: VideoParts
    submissions: Submissions
    catalog: Catalog
    bodies: ImageBodies
    files: JobFiles
    extensions: Extensions


Used = Annotated[ClipParts, Depends(Uses(ClipParts))]
_Submitted = tuple[Job, VideoBody]


@router.post("", summary="Generate a clip", response_model=OpenAIVideo, openapi_extra=video_schema())
async def create_video(request: Request, parts: Used, caller: SubmittingCaller, origin: Origin) -> Response:
    """Queue a job of one clip, which may begin with the image of a form, or with one that is named."""
    submit_body = _submit_named if is_json(content_type_of(request)) else _submit_form
    try:
        job, fields = await submit_body(request, parts, caller, origin)
    except ClientDisconnect:
        return Response(status_code=400)  # the client has disconnected and reads no response
    return json_response(await video_of(parts.videos, job, origin.base_url, fields))


@router.get("", summary="List clips", response_model=OpenAIVideoPage)
async def list_videos(
    parts: Used,
    caller: ClientCaller,
    base_url: BaseUrl,
    after: Annotated[str | None, Query(description="The `last_id` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Annotated[Literal["asc", "desc"], Query(description="`desc` for the newest first.")] = "desc",
) -> Response:
    """List the caller's clips, however their jobs were submitted."""
    jobs = await parts.store.jobs.list_jobs(
        tenant_id=caller.scope,
        kind=VIDEO_GENERATE,
        after=None if after is None else job_id_of(after),
        limit=limit + 1,
        oldest_first=order == "asc",
    )
    page = await page_of_videos(parts.videos, jobs[:limit], base_url, has_more=len(jobs) > limit)
    return json_response(page)


@router.post(
    "/edits",
    summary="Generate a clip like another",
    response_model=OpenAIVideo,
    openapi_extra=video_edit_schema(),
)
async def edit_video(request: Request, parts: Used, caller: SubmittingCaller, origin: Origin) -> Response:
    """Queue a remix of the clip that is named: another prompt, and the noise of the original."""
    return await _followed(VideoEditBody, request, parts, caller, origin)


@router.post(
    "/extensions",
    summary="Generate what follows a clip",
    response_model=OpenAIVideo,
    openapi_extra=extension_schema(),
)
async def extend_video(request: Request, parts: Used, caller: SubmittingCaller, origin: Origin) -> Response:
    """Queue a clip of `seconds` that begins with the last frame of the one that is named.

    The new clip is the extension alone; the model must take a first frame.
    """
    return await _followed(ExtensionBody, request, parts, caller, origin)


@router.post("/characters", summary="Refuse a character", include_in_schema=False)
async def create_character(_caller: ClientCaller) -> Response:
    """Raise `InvalidParams`: characters are nothing that these models know."""
    raise InvalidParams("video", "a clip", _NO_CHARACTERS)


@router.get("/characters/{character_id}", summary="Refuse a character", include_in_schema=False)
async def get_character(character_id: str, _caller: ClientCaller) -> Response:
    """Raise `NotFound`: this server keeps no characters."""
    raise NotFound(f"no character {character_id[:100]!r}: {_NO_CHARACTERS}")


@router.get("/{video_id}", summary="Get a clip", response_model=OpenAIVideo)
async def get_video(video_id: VideoId, parts: Used, caller: ClientCaller, base_url: BaseUrl) -> Response:
    """Get the status of a clip, and how much of it is done."""
    job = await _job_of(parts, caller, video_id)
    return json_response(await video_of(parts.videos, job, base_url))


@router.get(
    "/{video_id}/content",
    summary="Fetch a clip",
    response_class=StreamingResponse,
    responses={
        **file_responses("video/*", "image/*"),
        409: {"description": "`not_finished`: the clip is not completed yet."},
    },
)
async def get_video_content(
    video_id: VideoId,
    parts: Used,
    caller: ClientCaller,
    part: Part,
    variant: Annotated[Variant, Query(description="The clip, its first frame, or its frames as a sheet.")] = (
        "video"
    ),
) -> Response:
    """Fetch the file, or be redirected to where it is stored."""
    job = await _job_of(parts, caller, video_id)
    return await parts.files.response(job, file_of(job, variant), part)


@router.delete("/{video_id}", summary="Delete a clip and its files", response_model=DeletedOpenAIVideo)
async def delete_video(video_id: VideoId, parts: Used, caller: ClientCaller) -> Response:
    """Delete a clip. One that is not completed is canceled first, and deleted once its worker lets go."""
    job = await _job_of(parts, caller, video_id)
    await parts.files.delete(job, caller)
    return json_response(DeletedOpenAIVideo(id=video_id_of(job.id)))


@router.post("/{video_id}/remix", summary="Generate a clip like another", response_model=OpenAIVideo)
async def remix_video(
    video_id: VideoId, body: RemixBody, parts: Used, caller: SubmittingCaller, origin: Origin
) -> Response:
    """Queue a job with another prompt and everything else as in the original, the seed included.

    So both are drawn from the same noise and look alike as far as their prompts do. The original need not be
    completed; an image that it begins with must still be stored.
    """
    original = await _job_of(parts, caller, video_id)
    job = await _submit(parts, await parts.bodies.submission(caller, body.job(original), origin))
    return json_response(await video_of(parts.videos, job, origin.base_url, body))


async def _followed(
    model: type[VideoEditBody], request: Request, parts: ClipParts, caller: Caller, origin: RequestOrigin
) -> Response:
    """Respond with the clip that a body asks for, which names another clip as its `video`."""
    try:
        body, sha256 = await parts.bodies.edit(request, caller.tenant_id, model)
    except ClientDisconnect:
        return Response(status_code=400)  # the client has disconnected and reads no response
    original = await _original(parts, caller, body, sha256)
    submission, told = await parts.bodies.submission(caller, body.job(original), origin), _DRAWN_ANEW
    if isinstance(body, ExtensionBody):
        submission = replace(submission, resolve=parts.extensions.resolver(original))
        told = _EXTENSION_ALONE
    job = await _submit(parts, submission)
    told = told.format(video_id_of(original.id))
    return json_response(await video_of(parts.videos, job, origin.base_url, body, told))


async def _original(parts: ClipParts, caller: Caller, body: VideoEditBody, sha256: str | None) -> Job:
    """Return the clip that is named, or whose file came along, as OpenAI's client sends it."""
    if body.video is not None:
        return await _job_of(parts, caller, body.video.id)
    newest = await parts.store.jobs.list_jobs(tenant_id=caller.scope, kind=VIDEO_GENERATE, limit=_NUM_KNOWN)
    for job in newest if sha256 else ():
        if sha256 in {artifact.sha256 for artifact in (job.result.artifacts if job.result else ())}:
            return job
    raise InvalidParams("video", "a file" if sha256 else None, _NO_CLIP)


async def _submit_named(
    request: Request, parts: ClipParts, caller: Caller, origin: RequestOrigin
) -> _Submitted:
    """Submit the job that JSON asks for, whose image has a URL or an id."""
    async with parts.bodies.json(request, caller.tenant_id, VideoBody) as fields:
        return await _submit(parts, await parts.bodies.submission(caller, fields.job(), origin)), fields


async def _submit_form(
    request: Request, parts: ClipParts, caller: Caller, origin: RequestOrigin
) -> _Submitted:
    """Submit the job that a form asks for; nothing keeps its image in memory once it is stored."""
    async with parts.bodies.form(request, caller.tenant_id, FORM, "application/json") as form:
        fields, uploads = video_fields_of(form)
        new = fields.job() if uploads is None else fields.job_on(uploads.names[0])
        return await _submit(parts, await parts.bodies.submission(caller, new, origin, uploads)), fields


async def _submit(parts: ClipParts, submission: Submission) -> Job:
    return await taken(parts.catalog, parts.config.openai_sizes, submission, parts.submissions.submit)


async def taken(
    catalog: Catalog,
    sizes: TierPolicy,
    submission: Submission,
    take: Callable[[Submission], Awaitable[Taken]],
) -> Taken:
    """Return what `take` makes of the job of a clip that fits its model; errors name OpenAI's fields."""
    body = submission.body
    with renamed_fields(_renamed):
        served = await catalog.pick(body.model, body.kind)
        return await take(replace(submission, body=fitted(body, served, sizes)))


async def _job_of(parts: ClipParts, caller: Caller, job_id: str) -> Job:
    """Return the job of a clip. Raise `JobNotFound` also for a job of another kind or tenant."""
    try:
        job = await parts.store.jobs.get(job_id, caller.scope)
    except JobNotFound as error:
        raise no_such_video(video_id_of(job_id)) from error
    if job.kind != VIDEO_GENERATE:
        raise no_such_video(video_id_of(job_id))
    return job


def _renamed(field: str) -> str:
    return _FIELDS.get(field, field)
