"""OpenAI's way to ask for images: one request that waits, or streams, until they are there."""

import asyncio
import re
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field, field_validator

from diffuserve.api.auth.dependencies import BaseUrl
from diffuserve.api.auth.quota import Submitter
from diffuserve.api.image_replies import ImageReplies, failure
from diffuserve.api.problems import openai_response
from diffuserve.api.responses import json_response
from diffuserve.api.schemas import (
    MAX_PREVIEWS,
    OPENAI_ANSWERS,
    Body,
    GenerationInput,
    ImagesShape,
    ModelName,
    NewJobBody,
    OutputFormat,
    Prompt,
)
from diffuserve.api.services import Services, ServicesOf
from diffuserve.api.submission import field_names, submit
from diffuserve.domain.job import Job, JobStatus

router = APIRouter(tags=["openai"])

_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
_FIELDS = {"width": "size", "height": "size", "num_images": "n"}
_CLIENT_GONE = 499


class ImagesBody(Body):
    """`POST /v1/images/generations` of the OpenAI API.

    `quality`, `style` and `moderation` choose among things that these models have one of, and are
    ignored; so is `output_compression`. A transparent background cannot be drawn and is refused.
    """

    prompt: Prompt
    model: ModelName | None = None
    n: Annotated[int, Field(ge=1, le=10)] | None = 1
    size: str | None = Field(default="auto", description="`WIDTHxHEIGHT`, or `auto` for the model's own.")
    response_format: Literal["b64_json", "url"] | None = "b64_json"
    output_format: OutputFormat | None = "png"
    stream: bool | None = False
    partial_images: Annotated[int, Field(ge=0, le=MAX_PREVIEWS)] | None = 0
    user: Annotated[str, Field(max_length=1_000)] | None = Field(
        default=None, description="Kept in the job's metadata."
    )
    quality: Annotated[str, Field(max_length=20)] | None = None
    style: Annotated[str, Field(max_length=20)] | None = None
    moderation: Annotated[str, Field(max_length=20)] | None = None
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    background: Literal["auto", "opaque"] | None = None

    @field_validator("size")
    @classmethod
    def _check_size(cls, size: str | None) -> str | None:
        if size not in (None, "auto") and not _SIZE.fullmatch(size):
            raise ValueError("must be WIDTHxHEIGHT in pixels, such as 1024x1024, or auto")
        return size

    def job(self) -> NewJobBody:
        """The job that this asks for."""
        match = _SIZE.fullmatch(self.size or "auto")
        width, height = (int(match[1]), int(match[2])) if match else (None, None)
        drawing = GenerationInput.model_construct(
            prompt=self.prompt, width=width, height=height, num_images=self.n or 1
        )
        return NewJobBody.model_construct(
            model=self.model,
            input=drawing,
            metadata={"user": self.user} if self.user else {},
            output_format=self.output_format or "png",
            num_previews=(self.partial_images or 0) if self.stream else 0,
        )


@router.post(
    "/v1/images/generations",
    summary="Draw images, and wait for them",
    response_model=ImagesShape,
    responses={
        **OPENAI_ANSWERS,
        200: {"content": {"text/event-stream": {}}},
    },
)
async def generate_images(
    body: ImagesBody, request: Request, services: ServicesOf, caller: Submitter, base_url: BaseUrl
) -> Response:
    """One job of `n` images, which is canceled when the client goes away."""
    with field_names(lambda name: _FIELDS.get(name, name)):
        job = await submit(services, caller, body.job(), base_url)
    replies = ImageReplies(services, base_url, as_url=body.response_format == "url")
    if body.stream:
        return replies.stream(job)
    final = await _final_unless_gone(request, services, job)
    if final is None:
        return Response(status_code=_CLIENT_GONE)
    if final.status is not JobStatus.SUCCEEDED:
        return openai_response(failure(final))
    return json_response(await replies.whole(final))


async def _final_unless_gone(request: Request, services: Services, job: Job) -> Job | None:
    """The job once it is final; canceled, and `None`, where the client leaves first."""
    ending = asyncio.create_task(services.follower.final(job.id))
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait({ending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return ending.result() if ending.done() else None
    finally:
        if not ending.done():
            services.background.start(services.store.jobs.cancel(job.id))
        ending.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
