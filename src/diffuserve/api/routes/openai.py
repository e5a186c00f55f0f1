"""OpenAI's image API: one request that waits for its images, or streams them."""

import asyncio
import re
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field, field_validator

from diffuserve.api.auth.dependencies import BaseUrl
from diffuserve.api.auth.waits import SubmittingFollower
from diffuserve.api.json_route import JsonRoute
from diffuserve.api.middleware import CLIENT_CLOSED_REQUEST
from diffuserve.api.openai.images import OpenAIImageSerializer, failure_problem
from diffuserve.api.openai.resources import OPENAI_ERROR_RESPONSES, OpenAIImages
from diffuserve.api.problems import openai_response
from diffuserve.api.request_bodies import (
    GenerationInput,
    Guidance,
    ModelName,
    NegativePrompt,
    NewJobBody,
    OutputFormat,
    Prompt,
    RequestBody,
    Sampler,
    Seed,
    Steps,
    Storable,
)
from diffuserve.api.responses import json_response
from diffuserve.api.services import Services, ServicesDep
from diffuserve.api.submission import renamed_fields, submit
from diffuserve.domain.job import MAX_PREVIEWS, Job, JobStatus

router = APIRouter(tags=["openai"], route_class=JsonRoute)

_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
_FIELDS = {"width": "size", "height": "size", "num_images": "n"}


class ImagesBody(RequestBody):
    """`POST /v1/images/generations` of the OpenAI API.

    `quality`, `style`, `moderation` and `output_compression` are accepted and ignored: the models offer no
    such choice. A transparent background is rejected. OpenAI's own API lacks the last six fields; its client
    sends them as `extra_body`.
    """

    prompt: Prompt
    model: ModelName | None = None
    n: Annotated[int, Field(ge=1, le=10)] | None = 1
    size: str | None = Field(default="auto", description="`WIDTHxHEIGHT`, or `auto` for the model's default.")
    response_format: Literal["b64_json", "url"] | None = "b64_json"
    output_format: OutputFormat | None = "png"
    stream: bool | None = False
    partial_images: Annotated[int, Field(ge=0, le=MAX_PREVIEWS)] | None = 0
    user: Annotated[str, Field(max_length=1_000), Storable] | None = Field(
        default=None, description="Stored in the job's metadata."
    )
    quality: Annotated[str, Field(max_length=20)] | None = None
    style: Annotated[str, Field(max_length=20)] | None = None
    moderation: Annotated[str, Field(max_length=20)] | None = None
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    background: Literal["auto", "opaque"] | None = None
    negative_prompt: NegativePrompt | None = None
    seed: Seed | None = None
    num_inference_steps: Steps | None = None
    guidance_scale: Guidance | None = None
    sampler: Sampler | None = None
    expand_prompt: bool | None = False

    @field_validator("size")
    @classmethod
    def _check_size(cls, size: str | None) -> str | None:
        if size not in (None, "auto") and not _SIZE.fullmatch(size):
            raise ValueError("must be WIDTHxHEIGHT in pixels, such as 1024x1024, or auto")
        return size

    def job(self) -> NewJobBody:
        """Build the body of the equivalent job."""
        match = _SIZE.fullmatch(self.size or "auto")
        width, height = (int(match[1]), int(match[2])) if match else (None, None)
        generation = GenerationInput.model_construct(
            prompt=self.prompt,
            negative_prompt=self.negative_prompt,
            width=width,
            height=height,
            num_inference_steps=self.num_inference_steps,
            guidance_scale=self.guidance_scale,
            seed=self.seed,
            sampler=self.sampler,
            num_images=self.n or 1,
        )
        return NewJobBody.model_construct(
            model=self.model,
            input=generation,
            metadata={"user": self.user} if self.user else {},
            output_format=self.output_format or "png",
            num_previews=(self.partial_images or 0) if self.stream else 0,
            expand_prompt=bool(self.expand_prompt),
        )


@router.post(
    "/v1/images/generations",
    summary="Generate images, and wait for them",
    response_model=OpenAIImages,
    responses={
        **OPENAI_ERROR_RESPONSES,
        200: {"content": {"text/event-stream": {}}},
    },
)
async def generate_images(
    body: ImagesBody, request: Request, services: ServicesDep, caller: SubmittingFollower, base_url: BaseUrl
) -> Response:
    """Run a job of `n` images, which is canceled if the client disconnects."""
    with renamed_fields(lambda name: _FIELDS.get(name, name)):
        job = await submit(services, caller, body.job(), base_url)
    serializer = OpenAIImageSerializer(services, base_url, as_url=body.response_format == "url")
    if body.stream:
        return serializer.stream(job)
    final = await _final_unless_disconnected(request, services, job)
    if final is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if final.status is not JobStatus.SUCCEEDED:
        return openai_response(failure_problem(final))
    return json_response(await serializer.images(final))


async def _final_unless_disconnected(request: Request, services: Services, job: Job) -> Job | None:
    """Return the job once it is final; cancel it and return `None` if the client disconnects first."""
    ending = asyncio.create_task(services.job_watcher.final(job))
    disconnecting = asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait({ending, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        return ending.result() if ending.done() else None
    finally:
        if not ending.done():
            services.background_tasks.start(services.store.jobs.cancel(job.id))
        ending.cancel()
        disconnecting.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
