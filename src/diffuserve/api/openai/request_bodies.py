"""Bodies of OpenAI's image API, as JSON or as the texts of a form, and the jobs that they ask for."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from diffuserve.api.http.storable import Storable
from diffuserve.api.openai.background import Background
from diffuserve.api.openai.tolerant_body import TolerantBody
from diffuserve.api.submit.file_formats import has_quality
from diffuserve.api.submit.request_bodies import (
    GenerationInput,
    ImageName,
    Kind,
    ModelName,
    NewJobBody,
    Prompt,
    input_values,
    takes_fields,
)
from diffuserve.domain.jobs.job import MAX_PREVIEWS
from diffuserve.domain.requests.request_bounds import MAX_INPUT_IMAGES
from diffuserve.domain.requests.request_fields import Dialect

VARIATION_PROMPT = "an image like this"
VARIATION_STRENGTH = 0.6

_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
_Identifier = Annotated[str, Field(max_length=1_000), Storable]
_OTHER_QUALITIES = {"standard": "medium", "hd": "high"}
OutputFormat = Literal["png", "webp", "jpeg", "gif"]
Quality = Literal["auto", "low", "medium", "high", "xhigh", "max", "standard", "hd"]


def check_size(size: str) -> str:
    """Return the text. Raise `ValueError` if it is no size."""
    if size != "auto" and not _SIZE.fullmatch(size):
        raise ValueError("must be WIDTHxHEIGHT in pixels, such as 1024x1024, or auto")
    return size


def sides_of(size: str | None) -> tuple[int, int] | tuple[None, None]:
    """Return the width and height of a size, or none for the model's own."""
    match = _SIZE.fullmatch(size or "auto")
    return (int(match[1]), int(match[2])) if match else (None, None)


_Size = Annotated[str, AfterValidator(check_size)]


@takes_fields(Dialect.OPENAI_IMAGES)
class CommonImageFields(TolerantBody):
    """Options of every request of OpenAI's image API.

    Other fields of that API are accepted and ignored, and the response names them in `diffuserve_ignored`. A
    transparent `background` is for models whose `limits.has_layers` is true. OpenAI's own API lacks
    `expand_prompt` and the declared fields of a request; its client sends them as `extra_body`.
    """

    model: ModelName | None = None
    n: Annotated[int, Field(ge=1, le=10)] | None = 1
    size: _Size | None = Field(
        default="auto", description="`WIDTHxHEIGHT`, or `auto` for the model's default."
    )
    response_format: Literal["b64_json", "url"] | None = "b64_json"
    output_format: OutputFormat | None = Field(
        default="png", description="`gif` is an animation, of models that make clips."
    )
    stream: bool | None = False
    partial_images: Annotated[int, Field(ge=0, le=MAX_PREVIEWS)] | None = 0
    user: _Identifier | None = Field(default=None, description="Stored in the job's metadata.")
    safety_identifier: _Identifier | None = Field(default=None, description="Stored in place of `user`.")
    quality: Quality | None = Field(
        default=None, description="Chooses the steps, as `GET /v1/models` tells in `qualities`."
    )
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None, description="Quality of `jpeg` and `webp`."
    )
    frame_count: Annotated[int, Field(ge=2, le=16)] | None = Field(
        default=None, description="Frames of a `gif`, or the nearest number that the model can; by default 9."
    )
    frame_duration_ms: Annotated[int, Field(ge=10, le=655_350)] | None = Field(
        default=None, description="Time of each frame of a `gif`; by default 200."
    )
    background: Background | None = None
    expand_prompt: bool | None = False

    @property
    def is_clip(self) -> bool:
        """True if the frames of a clip are asked for, as an animation."""
        return self.output_format == "gif"

    @property
    def kind(self) -> Kind:
        """Kind of the job."""
        return "video.generate" if self.is_clip else "image.generate"

    @property
    def known_quality(self) -> str | None:
        """The quality by its newest name; `None` for the model's own steps."""
        named = _OTHER_QUALITIES.get(self.quality or "auto", self.quality)
        return None if named == "auto" else named

    @property
    def identifier(self) -> str | None:
        """The client's name for its user."""
        return self.safety_identifier or self.user or None

    def _unknown(self) -> Iterator[str]:
        yield from super()._unknown()
        if self.output_compression is not None and not self._has_quality:
            yield "output_compression"
        if self.partial_images and not self.stream:
            yield "partial_images"
        says_steps = input_values(self, Dialect.OPENAI_IMAGES)["num_inference_steps"] is not None
        if self.known_quality and says_steps:
            yield "quality"
        if not self.is_clip:
            yield from (name for name in ("frame_count", "frame_duration_ms") if getattr(self, name))

    @property
    def _has_quality(self) -> bool:
        return has_quality(self.kind, self.output_format or "png")

    def _job(self, prompt: str, **values: Any) -> NewJobBody:
        width, height = sides_of(self.size)
        said = input_values(self, Dialect.OPENAI_IMAGES) | values
        generation = GenerationInput.model_construct(
            prompt=prompt,
            width=width,
            height=height,
            num_images=self.n or 1,
            output_quality=self.output_compression if self._has_quality else None,
            **said,
        )
        return NewJobBody.model_construct(
            kind=self.kind,
            model=self.model,
            input=generation,
            metadata={"user": self.identifier} if self.identifier else {},
            output_format=self.output_format or "png",
            num_previews=(self.partial_images or 0) if self.stream else 0,
            expand_prompt=bool(self.expand_prompt),
        )


class ImagesBody(CommonImageFields):
    """`POST /v1/images/generations` of the OpenAI API."""

    prompt: Prompt

    def job(self) -> NewJobBody:
        """Build the body of the equivalent job."""
        return self._job(self.prompt)


@takes_fields(Dialect.OPENAI_EDITS)
class EditFields(CommonImageFields):
    """Fields of `POST /v1/images/edits` beside its images; `strength` says how much may change."""

    prompt: Prompt

    def job_on(self, images: Sequence[str], mask: str | None) -> NewJobBody:
        """Build the body of the equivalent job on these images."""
        said = input_values(self, Dialect.OPENAI_EDITS)
        return self._job(self.prompt, image=_one_or_all(images), mask=mask, **said)


@takes_fields(Dialect.OPENAI_EDITS)
class VariationFields(CommonImageFields):
    """Fields of `POST /v1/images/variations` beside its image; OpenAI's own lack prompt and strength."""

    prompt: Prompt = VARIATION_PROMPT

    def job_on(self, images: Sequence[str], starts_from_image: bool) -> NewJobBody:
        """Build the body of the equivalent job; a model that takes references has no strength."""
        said = input_values(self, Dialect.OPENAI_EDITS)
        if starts_from_image:
            said["strength"] = said["strength"] or VARIATION_STRENGTH
        return self._job(self.prompt, image=_one_or_all(images), **said)


def _one_or_all(images: Sequence[str]) -> str | list[str]:
    return images[0] if len(images) == 1 else list(images)


class NamedImage(TolerantBody):
    """Image by its URL or by the id of an uploaded file."""

    image_url: ImageName | None = Field(default=None, description="A `data:` or an `https:` URL.")
    file_id: ImageName | None = Field(default=None, description="Id of an image from `POST /v1/files`.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.image_url is None) == (self.file_id is None):
            raise ValueError("must have either image_url or file_id")
        return self

    @property
    def name(self) -> str:
        """Name of the image, whichever way it is given."""
        return self.image_url or self.file_id or ""


class EditBody(EditFields):
    """`POST /v1/images/edits` of the OpenAI API as JSON."""

    images: Annotated[list[NamedImage], Field(min_length=1, max_length=MAX_INPUT_IMAGES)]
    mask: NamedImage | None = None

    def job(self) -> NewJobBody:
        """Build the body of the equivalent job."""
        return self.job_on([image.name for image in self.images], self.mask.name if self.mask else None)
