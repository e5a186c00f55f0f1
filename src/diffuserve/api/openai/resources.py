"""Responses of OpenAI's image and video APIs.

See https://platform.openai.com/docs/api-reference/images and …/videos.
"""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from diffuserve.api.http.openai_errors import OpenAIError
from diffuserve.domain.resource_base import Resource


@dataclass(frozen=True, kw_only=True)
class Noted:
    """What a response says of its request beyond OpenAI's fields."""

    diffuserve_warnings: tuple[str, ...] = field(
        metadata={"description": "What was done otherwise than asked, in words."}
    )
    diffuserve_ignored: tuple[str, ...] = field(
        metadata={"description": "Fields of the request that changed nothing."}
    )


@dataclass(frozen=True, kw_only=True)
class NotedImages(Noted):
    """The same of images: the job that drew them, and the client's name of its user."""

    safety_identifier: str | None
    diffuserve_job_id: str


@dataclass(frozen=True, kw_only=True)
class OpenAIUsage(Resource):
    """Tokens as the model packs them."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


@with_config(ConfigDict(extra="forbid"))
class OpenAIImage(TypedDict, total=False):
    """Image, either inline or behind a URL: the absent field is left out, as OpenAI does."""

    b64_json: str | None
    url: str | None
    diffuserve_seed: int | None


@dataclass(frozen=True, kw_only=True)
class OpenAIImages(NotedImages, Resource):
    """Finished images of one request."""

    created: int
    background: str
    output_format: str
    quality: str | None = field(metadata={"description": "As asked for; null for the model's own steps."})
    size: str
    data: tuple[OpenAIImage, ...]
    usage: OpenAIUsage


@dataclass(frozen=True, kw_only=True)
class ImageEvent:
    """Fields that every image event of a stream has."""

    type: str
    background: str
    created_at: int
    quality: str
    size: str
    b64_json: str
    output_format: str


@dataclass(frozen=True, kw_only=True)
class PartialImageEvent(ImageEvent):
    """Preview of an unfinished image."""

    partial_image_index: int


@dataclass(frozen=True, kw_only=True)
class CompletedImageEvent(NotedImages, ImageEvent):
    """Finished image."""

    usage: OpenAIUsage
    diffuserve_seed: int | None


@dataclass(frozen=True, kw_only=True)
class ErrorEvent:
    """End of a stream whose images cannot be finished."""

    type: Literal["error"] = "error"
    error: OpenAIError


@dataclass(frozen=True, kw_only=True)
class OpenAIVideoError(Resource):
    """Reason why a clip was not finished."""

    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class OpenAIVideo(Noted, Resource):
    """Clip that is generated or being generated; times are seconds since 1970."""

    id: str = field(metadata={"description": "`video_x` is the job `job_x`."})
    object: Literal["video"] = "video"
    model: str
    status: str = field(metadata={"description": "`queued`, `in_progress`, `completed` or `failed`."})
    progress: int = field(metadata={"description": "In 0…100; 100 once it is completed."})
    created_at: int
    completed_at: int | None
    expires_at: int | None = field(metadata={"description": "Null until it has ended."})
    prompt: str | None = field(metadata={"description": "As the client wrote it."})
    seconds: str = field(metadata={"description": 'Length of the clip, such as `"4"`.'})
    size: str
    remixed_from_video_id: str | None
    error: OpenAIVideoError | None


@dataclass(frozen=True, kw_only=True)
class OpenAIVideoPage(Resource):
    """Page of the caller's clips."""

    object: Literal["list"] = "list"
    data: tuple[OpenAIVideo, ...]
    first_id: str | None
    last_id: str | None = field(metadata={"description": "The `after` of the next page."})
    has_more: bool


@dataclass(frozen=True, kw_only=True)
class DeletedOpenAIVideo(Resource):
    """Answer to the deletion of a clip."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: Literal[True] = True
