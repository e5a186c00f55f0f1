"""Bodies of OpenAI's image API, as JSON or as the texts of a form, and the jobs that they ask for."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from diffuserve.api.openai.background import Background
from diffuserve.api.submit.file_formats import ImageFormat
from diffuserve.api.submit.request_bodies import (
    GenerationInput,
    ImageName,
    ModelName,
    NewJobBody,
    Prompt,
    RequestBody,
    Storable,
    input_values,
    takes_fields,
)
from diffuserve.domain.jobs.job import MAX_PREVIEWS
from diffuserve.domain.requests.request_bounds import MAX_INPUT_IMAGES
from diffuserve.domain.requests.request_fields import Dialect

VARIATION_PROMPT = "an image like this one"
VARIATION_STRENGTH = 0.6

_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
_Word = Annotated[str, Field(max_length=20)]


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
class CommonImageFields(RequestBody):
    """Options of every request of OpenAI's image API.

    `quality`, `style`, `moderation` and `output_compression` are accepted and ignored: the models offer no
    such choice. A transparent `background` is for models whose `limits.has_layers` is true. OpenAI's own API
    lacks `expand_prompt` and the declared fields of a request; its client sends them as `extra_body`.
    """

    model: ModelName | None = None
    n: Annotated[int, Field(ge=1, le=10)] | None = 1
    size: _Size | None = Field(
        default="auto", description="`WIDTHxHEIGHT`, or `auto` for the model's default."
    )
    response_format: Literal["b64_json", "url"] | None = "b64_json"
    output_format: ImageFormat | None = "png"
    stream: bool | None = False
    partial_images: Annotated[int, Field(ge=0, le=MAX_PREVIEWS)] | None = 0
    user: Annotated[str, Field(max_length=1_000), Storable] | None = Field(
        default=None, description="Stored in the job's metadata."
    )
    quality: _Word | None = None
    style: _Word | None = None
    moderation: _Word | None = None
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    background: Background | None = None
    expand_prompt: bool | None = False

    def _job(self, prompt: str, **values: Any) -> NewJobBody:
        width, height = sides_of(self.size)
        said = input_values(self, Dialect.OPENAI_IMAGES) | values
        generation = GenerationInput.model_construct(
            prompt=prompt, width=width, height=height, num_images=self.n or 1, **said
        )
        return NewJobBody.model_construct(
            model=self.model,
            input=generation,
            metadata={"user": self.user} if self.user else {},
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
    """Fields of `POST /v1/images/edits` beside its images.

    `input_fidelity` is accepted and ignored; `strength` says how much may change.
    """

    prompt: Prompt
    input_fidelity: _Word | None = None

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


class NamedImage(RequestBody):
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
