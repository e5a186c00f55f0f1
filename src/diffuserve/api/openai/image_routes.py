"""OpenAI's image API: one request that waits for its images, or streams them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from starlette.requests import ClientDisconnect

from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.waits import SubmittingFollower
from diffuserve.api.door.forms import FORM
from diffuserve.api.door.json_route import JsonRoute, content_type_of, is_json
from diffuserve.api.door.middleware import CLIENT_CLOSED_REQUEST
from diffuserve.api.door.origin import Origin, RequestOrigin
from diffuserve.api.following.awaited_jobs import AwaitedJobs, failure_problem
from diffuserve.api.http.openai_errors import OPENAI_ERROR_RESPONSES
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.problems import openai_response
from diffuserve.api.http.responses import json_response
from diffuserve.api.openai.fitting import fitted_images
from diffuserve.api.openai.images import EDIT, GENERATION, ImageParts, OpenAIImageSerializer
from diffuserve.api.openai.request_bodies import (
    CommonImageFields,
    EditBody,
    EditFields,
    ImagesBody,
    VariationFields,
)
from diffuserve.api.openai.resources import OpenAIImages
from diffuserve.api.openai.schemas import edit_schema, variation_schema
from diffuserve.api.openai.uploads import ImageBodies, UploadedImages, fields_of
from diffuserve.api.reads.catalog import Catalog
from diffuserve.api.submit.request_bodies import NewJobBody
from diffuserve.api.submit.submission import Submission, Submissions, renamed_fields
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.domain.models.tiers import TierPolicy

Taken = TypeVar("Taken")

router = APIRouter(tags=["openai"], route_class=JsonRoute)


@dataclass(frozen=True)
class EditParts:
    """Parts that these routes use."""

    images: ImageParts
    awaited: AwaitedJobs
    submissions: Submissions
    catalog: Catalog
    bodies: ImageBodies


Used = Annotated[EditParts, Depends(Uses(EditParts))]


EDITS, VARIATIONS = "/v1/images/edits", "/v1/images/variations"
UPLOADS = frozenset({EDITS, VARIATIONS})
"""Paths whose bodies bring images, and are limited by their routes."""

_FIELDS = {
    "width": "size",
    "height": "size",
    "num_images": "n",
    "kind": "output_format",
    "num_frames": "frame_count",
    "fps": "frame_duration_ms",
    "output_quality": "output_compression",
}
_RESPONSES: Mapping[int | str, dict[str, Any]] = {
    **OPENAI_ERROR_RESPONSES,
    200: {"content": {"text/event-stream": {}}},
}


@router.post(
    "/v1/images/generations",
    summary="Generate images, and wait for them",
    response_model=OpenAIImages,
    responses=dict(_RESPONSES),
)
async def generate_images(
    body: ImagesBody, request: Request, parts: Used, caller: SubmittingFollower, origin: Origin
) -> Response:
    """Run a job of `n` images.

    It is canceled if the client disconnects, unless an `Idempotency-Key` lets it return.
    """
    job = await _submit(parts, caller, body, body.job(), origin)
    serializer = OpenAIImageSerializer(parts.images, origin, GENERATION, body)
    return await _response(request, parts, serializer, job)


@router.post(
    EDITS,
    summary="Edit images, and wait for the result",
    response_model=OpenAIImages,
    responses=dict(_RESPONSES),
    openapi_extra=edit_schema(),
)
async def edit_images(request: Request, parts: Used, caller: SubmittingFollower, origin: Origin) -> Response:
    """Run a job on the images of a form, or on those that JSON names.

    The job starts from the image and changes up to `strength` of it, fills in where the `mask` is transparent
    (or white, if it has no transparency), or follows the prompt as an instruction: as the model can.
    """
    submit_body = _submit_named if is_json(content_type_of(request)) else _submit_edit
    return await _edited(submit_body, request, parts, caller, origin)


@router.post(
    VARIATIONS,
    summary="Vary an image, and wait for the result",
    response_model=OpenAIImages,
    responses=dict(_RESPONSES),
    openapi_extra=variation_schema(),
)
async def vary_image(request: Request, parts: Used, caller: SubmittingFollower, origin: Origin) -> Response:
    """Run a job of `n` images on the image of a form.

    OpenAI's route has no prompt, and these models need one: without the extra fields `prompt` and `strength`
    the job has a prompt that says nothing of what the image shows, and changes 0.6 of it.
    """
    return await _edited(_submit_variation, request, parts, caller, origin)


_Submitted = tuple[Job, CommonImageFields]
_SubmitBody = Callable[[Request, EditParts, Caller, RequestOrigin], Awaitable[_Submitted]]


async def _edited(
    submit_body: _SubmitBody, request: Request, parts: EditParts, caller: Caller, origin: RequestOrigin
) -> Response:
    """Respond with the images of the job that a body with images asks for."""
    try:
        job, options = await submit_body(request, parts, caller, origin)
    except ClientDisconnect:
        return Response(status_code=400)  # the client has disconnected and reads no response
    serializer = OpenAIImageSerializer(parts.images, origin, EDIT, options)
    return await _response(request, parts, serializer, job)


async def _submit_named(
    request: Request, parts: EditParts, caller: Caller, origin: RequestOrigin
) -> _Submitted:
    """Submit the job of an edit in JSON, whose images have URLs or ids."""
    async with parts.bodies.json(request, caller.tenant_id, EditBody) as options:
        return await _submit(parts, caller, options, options.job(), origin), options


async def _submit_edit(
    request: Request, parts: EditParts, caller: Caller, origin: RequestOrigin
) -> _Submitted:
    """Submit the job of an edit in a form; nothing keeps its images in memory once it is stored."""
    async with parts.bodies.form(request, caller.tenant_id, FORM, "application/json") as form:
        options, uploads = fields_of(form, EditFields)
        new = options.job_on(uploads.names, uploads.mask_name)
        return await _submit(parts, caller, options, new, origin, uploads), options


async def _submit_variation(
    request: Request, parts: EditParts, caller: Caller, origin: RequestOrigin
) -> _Submitted:
    """Submit the job of a variation; nothing keeps its image in memory once it is stored."""
    async with parts.bodies.form(request, caller.tenant_id, FORM) as form:
        options, uploads = fields_of(form, VariationFields)
        spec = (await parts.catalog.pick(options.model)).spec
        new = options.job_on(uploads.names, spec.has_strength)
        return await _submit(parts, caller, options, new, origin, uploads), options


async def _submit(
    parts: EditParts,
    caller: Caller,
    options: CommonImageFields,
    body: NewJobBody,
    origin: RequestOrigin,
    uploads: UploadedImages | None = None,
) -> Job:
    submission = await parts.bodies.submission(caller, body, origin, uploads)
    sizes = parts.images.config.openai_sizes
    return await taken(parts.catalog, sizes, options, submission, parts.submissions.submit)


async def taken(
    catalog: Catalog,
    sizes: TierPolicy,
    options: CommonImageFields,
    submission: Submission,
    take: Callable[[Submission], Awaitable[Taken]],
) -> Taken:
    """Return what `take` makes of a job that fits its model; errors name the fields of `options`."""
    body = submission.body
    fields = _FIELDS | {"image": "images" if isinstance(options, EditBody) else "image"}
    with renamed_fields(lambda field: fields.get(field, field)):
        served = await catalog.pick(body.model, body.kind)
        return await take(replace(submission, body=fitted_images(options, body, served, sizes)))


async def _response(
    request: Request, parts: EditParts, serializer: OpenAIImageSerializer, job: Job
) -> Response:
    """Return the images, or what became of them; headers name the job either way."""
    if serializer.fields.stream:
        return serializer.stream(job)
    final = await parts.awaited.final(request, job, serializer.origin.may_return)
    if final is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if final.status is JobStatus.SUCCEEDED:
        response = json_response(await serializer.images(final))
    else:
        response = openai_response(failure_problem(final))
    response.headers.update(serializer.headers(final))
    return response
