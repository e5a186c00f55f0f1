"""Finished images in OpenAI's shapes, at once or as a stream of events."""

import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from sse_starlette import EventSourceResponse, ServerSentEvent

from diffuserve.api.problems import Problem, openai_error, problem_of
from diffuserve.api.services import Services
from diffuserve.domain.cost import Workload
from diffuserve.domain.errors import DiffuserveError, InvalidParams, ModelNotCapable, OutputBlocked
from diffuserve.domain.job import Artifact, Job, JobStatus
from diffuserve.domain.params import GenerationParams

_STATUSES = {JobStatus.FAILED: 500, JobStatus.CANCELED: 409, JobStatus.EXPIRED: 504}
_BAD_INPUT = frozenset({InvalidParams.code, ModelNotCapable.code, OutputBlocked.code})


class ImageReplies:
    """`as_url` gives signed URLs in place of the images themselves; streams always carry images."""

    def __init__(self, services: Services, base_url: str, as_url: bool) -> None:
        self._services = services
        self._base_url = base_url
        self._as_url = as_url

    async def whole(self, job: Job) -> dict[str, Any]:
        load = await self._load(job)
        return {
            "created": int(job.finished_at or job.created_at),
            "background": "opaque",
            "output_format": job.output_format,
            "size": _size(job),
            "data": [await self._image(job, artifact) for artifact in _images(job)],
            "usage": _usage(load, load.num_sequences),
        }

    def stream(self, job: Job) -> EventSourceResponse:
        return EventSourceResponse(self._events(job), ping=self._services.config.ping_seconds, sep="\n")

    async def _events(self, job: Job) -> AsyncGenerator[ServerSentEvent]:
        """The job is canceled when nobody reads on."""
        try:
            async with aclosing(self._services.follower.follow(job.id)) as looks:
                async for look in looks:
                    if isinstance(look, Job):
                        job = look
                    elif look["type"] == "preview":
                        yield _partial(job, look["index"], look["b64"])
            async for event in self._ending(job):
                yield event
        except DiffuserveError as error:
            yield _error(problem_of(error))
        finally:
            if not job.status.is_final:
                self._services.background.start(self._services.store.jobs.cancel(job.id))

    async def _ending(self, job: Job) -> AsyncGenerator[ServerSentEvent]:
        if job.status is not JobStatus.SUCCEEDED:
            yield _error(failure(job))
            return
        usage = _usage(await self._load(job), num_images=1)
        for artifact in _images(job):
            image = {"b64_json": await self._base64(job, artifact), "output_format": job.output_format}
            yield _event("image_generation.completed", _common(job) | image | {"usage": usage})

    async def _image(self, job: Job, artifact: Artifact) -> dict[str, str]:
        if self._as_url:
            return {"url": await self._services.documents.artifact_url(job, artifact, self._base_url)}
        return {"b64_json": await self._base64(job, artifact)}

    async def _base64(self, job: Job, artifact: Artifact) -> str:
        key = f"{job.id}/{job.lease_token}/{artifact.name}"
        content = b"".join([chunk async for chunk in self._services.artifacts.read(key)])
        return base64.b64encode(content).decode()

    async def _load(self, job: Job) -> Workload:
        served = await self._services.catalog.pick(job.model)
        return served.spec.workload(GenerationParams(**job.input))


def failure(job: Job) -> Problem:
    """Why a final job gave no image. Asking again would be another job, so it is not advised."""
    error = job.error
    code, message = (error.code, error.message) if error else (str(job.status), f"the job was {job.status}")
    status = 400 if code in _BAD_INPUT else _STATUSES[job.status]
    return Problem(status=status, code=code, detail=message)


def _images(job: Job) -> list[Artifact]:
    artifacts = job.result.artifacts if job.result else ()
    return sorted((one for one in artifacts if one.role == "image"), key=lambda one: one.index)


def _size(job: Job) -> str:
    return f"{job.input['width']}x{job.input['height']}"


def _usage(load: Workload, num_images: int) -> dict[str, Any]:
    """Tokens as the model packs them: the prompt's once, each image's."""
    image_tokens = num_images * (load.sequence_tokens - load.text_tokens)
    return {
        "input_tokens": load.text_tokens,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": load.text_tokens},
        "output_tokens": image_tokens,
        "total_tokens": load.text_tokens + image_tokens,
    }


def _common(job: Job) -> dict[str, Any]:
    return {
        "background": "opaque",
        "created_at": int(job.created_at),
        "quality": "auto",
        "size": _size(job),
    }


def _partial(job: Job, index: int, image: str) -> ServerSentEvent:
    """Previews are PNG whatever the finished image will be."""
    content = {"b64_json": image, "output_format": "png", "partial_image_index": index}
    return _event("image_generation.partial_image", _common(job) | content)


def _event(kind: str, content: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(orjson.dumps({"type": kind, **content}).decode(), event=kind)


def _error(problem: Problem) -> ServerSentEvent:
    content = {"type": "error", "error": openai_error(problem)}
    return ServerSentEvent(orjson.dumps(content).decode(), event="error")
