"""AUTOMATIC1111's routes that draw: each is a job, which its request waits for."""

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from diffuserve.api.a1111.chosen_models import ChosenModels
from diffuserve.api.a1111.errors import error_response
from diffuserve.api.a1111.infos import info_of, infotext
from diffuserve.api.a1111.png_texts import parameters_in, with_parameters
from diffuserve.api.a1111.request_bodies import DrawBody, PngBody
from diffuserve.api.a1111.translation import OWNER, Drawing, drawing_of, field_name
from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.dependencies import BaseUrl, key_of
from diffuserve.api.auth.quota import ClientCaller
from diffuserve.api.auth.waits import SubmittingFollower
from diffuserve.api.config import ApiConfig
from diffuserve.api.door.json_route import JsonRoute, content_type_of, is_json, unsupported_media_type
from diffuserve.api.door.middleware import CLIENT_CLOSED_REQUEST
from diffuserve.api.door.upload import BatchUploads
from diffuserve.api.files.job_files import JobFiles
from diffuserve.api.following.awaited_jobs import AwaitedJobs, failure_problem
from diffuserve.api.following.last_previews import LastPreviews
from diffuserve.api.http.field_errors import nested_errors, validation_error
from diffuserve.api.http.json_body import UnreadableJson, parsed_json
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.reads.catalog import Catalog
from diffuserve.api.resources.serializers import JobSerializer
from diffuserve.api.submit.submission import Submission, Submissions, renamed_fields
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.domain.resources.job import images_among
from diffuserve.jobs.store import JobStore

router = APIRouter(tags=["a1111"], route_class=JsonRoute)

TXT2IMG, IMG2IMG, PNG_INFO = "/sdapi/v1/txt2img", "/sdapi/v1/img2img", "/sdapi/v1/png-info"
UPLOADS = frozenset({TXT2IMG, IMG2IMG, PNG_INFO})
"""Paths whose bodies bring images, and are limited by their routes."""

_IMAGES_AT_ONCE = 2  # images of the largest size in one request; more if they are smaller
_OPEN = (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.CANCELING)
_MOST_OPEN = 100  # jobs of a tenant among which those of a key are looked for
AnyBody = TypeVar("AnyBody", bound=BaseModel)
_PICTURES = {"init_images", "mask", "alwayson_scripts"}


@dataclass(frozen=True)
class DrawingParts:
    """Parts that these routes use."""

    config: ApiConfig
    store: JobStore
    catalog: Catalog
    submissions: Submissions
    awaited: AwaitedJobs
    previews: LastPreviews
    files: JobFiles
    serializer: JobSerializer
    uploads: BatchUploads
    chosen: ChosenModels


Used = Annotated[DrawingParts, Depends(Uses(DrawingParts))]


@router.post(TXT2IMG, summary="Draw images from a text, and wait for them")
async def draw_from_text(
    request: Request, parts: Used, caller: SubmittingFollower, base_url: BaseUrl
) -> Response:
    """Run a job of `batch_size` × `n_iter` images, which is canceled if the client disconnects."""
    return await _drawn(request, parts, caller, base_url)


@router.post(IMG2IMG, summary="Draw images from an image, and wait for them")
async def draw_from_image(
    request: Request, parts: Used, caller: SubmittingFollower, base_url: BaseUrl
) -> Response:
    """Run a job on `init_images`, within the `mask` where it is white."""
    return await _drawn(request, parts, caller, base_url)


async def _drawn(request: Request, parts: DrawingParts, caller: Caller, base_url: str) -> Response:
    try:
        async with _received(request, parts, caller, DrawBody) as body:
            drawing = await _drawing(parts, caller, body, request.url.path)
            with renamed_fields(field_name):
                job = await parts.submissions.submit(Submission(caller.tenant_id, drawing.job, base_url))
    except ClientDisconnect:
        return Response(status_code=400)  # the client has disconnected and reads no response
    final = await parts.awaited.final_with_previews(request, job)
    if final is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if final.status in (JobStatus.SUCCEEDED, JobStatus.CANCELED):  # an interrupted one has no images
        return json_response(await _images_of(parts, final, body, drawing))
    return error_response(failure_problem(final))


@asynccontextmanager
async def _received(
    request: Request, parts: DrawingParts, caller: Caller, kind: type[AnyBody]
) -> AsyncIterator[AnyBody]:
    """Receive a body in bounded time and memory, and hold it within the block."""
    if not is_json(content_type_of(request)):
        raise unsupported_media_type(request, "application/json")
    # base64 makes images a third longer
    most = parts.config.max_body_bytes + _IMAGES_AT_ONCE * parts.config.max_input_file_bytes * 4 // 3
    async with parts.uploads.received(request, caller.tenant_id, most, "send smaller images") as content:
        yield await asyncio.to_thread(_body_in, content[:], kind)


def _body_in(content: bytes, kind: type[AnyBody]) -> AnyBody:
    """Return the body. Raise `RequestValidationError`."""
    try:
        return kind.model_validate(parsed_json(content))
    except UnreadableJson as error:
        raise validation_error(("body",), str(error)) from error
    except ValidationError as error:
        raise nested_errors(("body",), error, kind) from error


async def _drawing(parts: DrawingParts, caller: Caller, body: DrawBody, path: str) -> Drawing:
    """Return the job that is asked for. Raise `InvalidParams` and what `Catalog.pick` raises."""
    if path == IMG2IMG and not body.init_images:
        raise InvalidParams("init_images", None, "needs an image in base64 to start from")
    key = key_of(caller)
    chosen = body.checkpoint or parts.chosen.of(caller.tenant_id, key)
    with renamed_fields(lambda field: "override_settings.sd_model_checkpoint" if field == "model" else field):
        spec = (await parts.catalog.pick(without_hash(chosen))).spec
    with renamed_fields(field_name):
        return drawing_of(body, spec, key)


def without_hash(title: str | None) -> str | None:
    """Return a model's name from its title, which other servers end with a hash in brackets."""
    return title and title.partition(" [")[0]


async def _images_of(parts: DrawingParts, job: Job, body: DrawBody, drawing: Drawing) -> dict[str, Any]:
    artifacts = images_among(job.result.artifacts if job.result else ())
    images = [
        with_parameters(await parts.files.content(job, each), infotext(job, each.seed))
        for each in (artifacts if body.send_images else ())
    ]
    return {
        "images": [base64.b64encode(image).decode() for image in images],
        "parameters": body.model_dump(include=set(DrawBody.model_fields) - _PICTURES),
        "info": info_of(job, artifacts, body.batch_size or 1, drawing.ignored),
    }


@router.post(PNG_INFO, summary="Read the parameters in an image")
async def read_parameters(request: Request, parts: Used, caller: ClientCaller) -> Response:
    """Return the line of parameters in a PNG that this door or another has drawn, empty without one."""
    async with _received(request, parts, caller, PngBody) as body:
        content = body.image.rpartition(",")[2]
    try:
        told = parameters_in(base64.b64decode(content, validate=True))
    except binascii.Error as error:
        raise InvalidParams("image", content[:20], "is not base64") from error
    return json_response({"info": told, "items": {"parameters": told} if told else {}, "parameters": {}})


@router.get("/sdapi/v1/progress", summary="See how far the key's own drawing is")
async def get_progress(parts: Used, caller: ClientCaller, skip_current_image: bool = False) -> Response:
    """Show the key's oldest job that is drawn, or else waits, with its last preview."""
    jobs = await _open_jobs(parts, caller)
    running = [job for job in jobs if job.status is not JobStatus.QUEUED]
    shown = next(iter(running or jobs), None)
    if shown is None:
        return json_response(_progress("", 0, 0, 0, 0.0, 0.0, None))
    done = (await parts.serializer.listed_job(shown, "")).progress
    preview = None if skip_current_image else parts.previews.of(shown.id)
    left = shown.cost_seconds * (1 - done.fraction)
    return json_response(_progress(shown.id, len(jobs), done.step, done.total, done.fraction, left, preview))


def _progress(  # noqa: PLR0913 (what is known of a drawing)
    job: str, count: int, step: int, total: int, fraction: float, left: float, preview: str | None
) -> dict[str, Any]:
    state = {
        "skipped": False,
        "interrupted": False,
        "stopping_generation": False,
        "job": job,
        "job_count": count,
        "job_timestamp": "0",
        "job_no": 0,
        "sampling_step": step,
        "sampling_steps": total,
    }
    return {
        "progress": fraction,
        "eta_relative": left,
        "state": state,
        "current_image": preview,
        "textinfo": None,
    }


@router.post("/sdapi/v1/interrupt", summary="Cancel the key's own drawings")
@router.post("/sdapi/v1/skip", name="skip", summary="Cancel the key's own drawings")
async def interrupt(parts: Used, caller: ClientCaller) -> Response:
    """Cancel what the key has asked for through this door, and is not done."""
    for job in await _open_jobs(parts, caller):
        await parts.store.jobs.cancel(job.id, caller.tenant_id)
    return json_response({})


async def _open_jobs(parts: DrawingParts, caller: Caller) -> list[Job]:
    """Return the jobs of the caller's key that this door has taken and that are not done, oldest first."""
    jobs = await parts.store.jobs.list_jobs(tenant_id=caller.tenant_id, statuses=_OPEN, limit=_MOST_OPEN)
    return [job for job in reversed(jobs) if job.metadata.get(OWNER) == key_of(caller)]
