"""Finished images in OpenAI's format, in one response or as a stream of events."""

import base64
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson
from sse_starlette import EventSourceResponse, ServerSentEvent

from diffuserve.api.config import ApiConfig
from diffuserve.api.door.origin import RequestOrigin
from diffuserve.api.following.awaited_jobs import failure_problem
from diffuserve.api.following.job_watcher import JobWatcher
from diffuserve.api.http.background_tasks import BackgroundTasks
from diffuserve.api.http.problems import openai_error, problem_of
from diffuserve.api.openai.background import background_of
from diffuserve.api.openai.notes import warnings_of
from diffuserve.api.openai.request_bodies import CommonImageFields
from diffuserve.api.openai.resources import (
    CompletedImageEvent,
    ErrorEvent,
    ImageEvent,
    OpenAIImage,
    OpenAIImages,
    OpenAIUsage,
    PartialImageEvent,
)
from diffuserve.api.reads.catalog import Catalog
from diffuserve.api.resources.serializers import JobSerializer
from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.jobs.job import Artifact, Job, JobStatus
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.resources.job import outputs_among
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import ArtifactStore

GENERATION, EDIT = "image_generation", "image_edit"
"""Beginnings of the types of a stream's events."""


@dataclass(frozen=True)
class ImageParts:
    """Parts that responses with images are made with."""

    config: ApiConfig
    store: JobStore
    artifacts: ArtifactStore
    catalog: Catalog
    job_watcher: JobWatcher
    serializer: JobSerializer
    background_tasks: BackgroundTasks


class OpenAIImageSerializer:
    """Builds responses to a body's `fields` from its job, and streams whose events begin with `kind`."""

    def __init__(
        self, parts: ImageParts, origin: RequestOrigin, kind: str, fields: CommonImageFields
    ) -> None:
        self.parts = parts
        self.fields = fields
        self.origin = origin
        self._kind = kind

    async def images(self, job: Job) -> OpenAIImages:
        """Build the response for a job that succeeded, with signed URLs or inline images."""
        params = GenerationParams.from_dict(job.input)
        return OpenAIImages(
            created=int(job.finished_at or job.created_at),
            background=background_of(await self._spec(job)),
            output_format=job.output_format,
            quality=self.fields.known_quality,
            size=_size(job),
            data=tuple([await self._image(job, artifact) for artifact in _outputs(job)]),
            usage=await self._usage(job, params.num_images),
            **self._own_fields(job),
        )

    def headers(self, job: Job) -> dict[str, str]:
        """Return what a response tells beside its body: the job, its seed, and what to know of both."""
        said = {"ignored": self.fields.ignored, "warnings": warnings_of(self.fields, job)}
        lists = {f"x-diffuserve-{name}": json.dumps(values) for name, values in said.items() if values}
        return {"x-diffuserve-job-id": job.id, "x-diffuserve-seed": str(job.input["seed"])} | lists

    def stream(self, job: Job) -> EventSourceResponse:
        """Build a response that follows the job until it ends."""
        ping_seconds = self.parts.config.ping_seconds
        return EventSourceResponse(self._events(job), headers=self.headers(job), ping=ping_seconds, sep="\n")

    def _own_fields(self, job: Job) -> dict[str, Any]:
        """Return the fields that end a response, whether it is a stream's last event or not."""
        return {
            "safety_identifier": self.fields.identifier,
            "diffuserve_job_id": job.id,
            "diffuserve_warnings": warnings_of(self.fields, job),
            "diffuserve_ignored": self.fields.ignored,
        }

    async def _events(self, job: Job) -> AsyncGenerator[ServerSentEvent]:
        """Yield previews and finished images; cancel the job if the client disconnects for good."""
        try:
            spec = await self._spec(job)
            async with aclosing(self.parts.job_watcher.watch(job)) as updates:
                async for update in updates:
                    if isinstance(update, Job):
                        job = update
                    elif update.resource.type == "preview":
                        preview = update.resource.data
                        if not preview.get("image"):  # clients of that API expect those of one image
                            yield _server_sent(self._partial_image(job, spec, preview))
            async for last in self._last_events(job, spec):
                yield last
        except DiffuserveError as error:
            yield _server_sent(ErrorEvent(error=openai_error(problem_of(error))))
        finally:
            if not (job.status.is_final or self.origin.may_return):
                self.parts.background_tasks.start(self.parts.store.jobs.cancel(job.id))

    async def _last_events(self, job: Job, spec: ModelSpec) -> AsyncGenerator[ServerSentEvent]:
        if job.status is not JobStatus.SUCCEEDED:
            yield _server_sent(ErrorEvent(error=openai_error(failure_problem(job))))
            return
        usage = await self._usage(job, num_images=1)
        for artifact in _outputs(job):
            yield _server_sent(
                CompletedImageEvent(
                    **self._common_fields(job, spec),
                    type=f"{self._kind}.completed",
                    b64_json=await self._base64(job, artifact),
                    output_format=job.output_format,
                    usage=usage,
                    diffuserve_seed=artifact.seed,
                    **self._own_fields(job),
                )
            )

    def _common_fields(self, job: Job, spec: ModelSpec) -> dict[str, Any]:
        return {
            "background": background_of(spec),
            "created_at": int(job.created_at),
            "quality": self.fields.known_quality or "auto",
            "size": _size(job),
        }

    def _partial_image(self, job: Job, spec: ModelSpec, preview: Mapping[str, Any]) -> PartialImageEvent:
        """Build a preview's event; previews are PNG whatever the format of the finished image."""
        return PartialImageEvent(
            **self._common_fields(job, spec),
            type=f"{self._kind}.partial_image",
            b64_json=preview["b64"],
            output_format="png",
            partial_image_index=preview["index"],
        )

    async def _image(self, job: Job, artifact: Artifact) -> OpenAIImage:
        if self.fields.response_format == "url":
            url = await self.parts.serializer.artifact_url(job, artifact, self.origin.base_url)
            return {"url": url, "diffuserve_seed": artifact.seed}
        return {"b64_json": await self._base64(job, artifact), "diffuserve_seed": artifact.seed}

    async def _base64(self, job: Job, artifact: Artifact) -> str:
        key = f"{job.id}/{job.lease_token}/{artifact.name}"
        content = b"".join([chunk async for chunk in self.parts.artifacts.read(key)])
        return base64.b64encode(content).decode()

    async def _spec(self, job: Job) -> ModelSpec:
        return (await self.parts.catalog.pick(job.model)).spec

    async def _usage(self, job: Job, num_images: int) -> OpenAIUsage:
        """Count the tokens of the prompt and of the input images once, and those of each image."""
        spec = await self._spec(job)
        params = GenerationParams.from_dict(job.input)
        text_tokens = params.max_sequence_length or 0
        input_tokens = spec.workload(params).input_pixels // spec.pixels_per_token
        image_tokens = num_images * spec.image_tokens(params)
        return OpenAIUsage(
            input_tokens=text_tokens + input_tokens,
            input_tokens_details={"image_tokens": input_tokens, "text_tokens": text_tokens},
            output_tokens=image_tokens,
            output_tokens_details={"image_tokens": image_tokens, "text_tokens": 0},
            total_tokens=text_tokens + input_tokens + image_tokens,
        )


def _outputs(job: Job) -> list[Artifact]:
    return outputs_among(job.result.artifacts if job.result else ())


def _size(job: Job) -> str:
    return f"{job.input['width']}x{job.input['height']}"


def _server_sent(event: ImageEvent | ErrorEvent) -> ServerSentEvent:
    return ServerSentEvent(orjson.dumps(event).decode(), event=event.type)
