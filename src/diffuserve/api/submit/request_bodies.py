"""Bodies of the requests that clients send, as pydantic checks them."""

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, create_model

from diffuserve.api.http.storable import Storable, check_text
from diffuserve.api.submit.file_formats import FILE_FORMAT, FileFormat
from diffuserve.domain.jobs.job import MAX_PREVIEWS, Band
from diffuserve.domain.jobs.job_options import JOB_OPTIONS, MAX_JOB_SECONDS, MAX_TEXT_CHARACTERS, JobOptions
from diffuserve.domain.jobs.job_options import value_type as option_type
from diffuserve.domain.requests.adapter_use import MAX_ADAPTER_NAME_CHARACTERS, MAX_ADAPTER_WEIGHT
from diffuserve.domain.requests.control_use import (
    MAX_CONTROL_MODE,
    MAX_CONTROL_NAME_CHARACTERS,
    MAX_CONTROL_WEIGHT,
)
from diffuserve.domain.requests.params import FIELDS
from diffuserve.domain.requests.request_bounds import MAX_INPUT_IMAGES, MAX_PROMPT_CHARACTERS
from diffuserve.domain.requests.request_fields import Dialect, FieldKind, RequestField
from diffuserve.domain.text.json_text import has_null_character
from diffuserve.options import option_of

MAX_METADATA_BYTES = 16_384
MAX_IMAGE_NAME_CHARACTERS = 2_048
"""Characters of a file's id or a URL; a data URL is limited by the size of the body and of its image."""


def _check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        text = orjson.dumps(metadata)
    except (TypeError, ValueError) as error:
        raise ValueError(f"cannot be stored as JSON: {error}") from error
    if has_null_character(text):
        raise ValueError("must not contain the character U+0000")
    size = len(text)
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"has {size:,} bytes as JSON; at most {MAX_METADATA_BYTES:,} are allowed")
    return metadata


def _check_image(name: object) -> str:
    """Return the name of an input image. Raise `ValueError`, which does not quote it, if it is invalid."""
    if not isinstance(name, str) or not name:
        raise ValueError("must be a string: the id of an uploaded file, a data: URL, or an https: URL")
    if len(name) > MAX_IMAGE_NAME_CHARACTERS and name[:5].lower() != "data:":
        limit = f"{len(name):,} characters; at most {MAX_IMAGE_NAME_CHARACTERS:,} are allowed"
        raise ValueError(f"has {limit}, unless it is a data: URL")
    if not name.isascii():
        raise ValueError("must be ASCII; encode other characters as in a URL")
    return check_text(name)


def _check_deadline(value: object) -> float | datetime:
    """Return seconds from now, or a time with its zone."""
    if isinstance(value, str):
        with suppress(ValueError):
            time = datetime.fromisoformat(value)
            if time.tzinfo is not None:
                return time
        raise ValueError("is no time with its zone, such as 2026-11-22T18:00:00Z")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_JOB_SECONDS:
        raise ValueError(f"must be seconds above 0, at most {MAX_JOB_SECONDS:,.0f}, or a time")
    return float(value)


def _check_images(names: object) -> str | list[str]:
    if not isinstance(names, list):
        return _check_image(names)
    if not 1 <= len(names) <= MAX_INPUT_IMAGES:
        raise ValueError(f"has {len(names):,} images; give 1 to {MAX_INPUT_IMAGES}")
    return [_check_image(name) for name in names]


Metadata = Annotated[dict[str, Any], AfterValidator(_check_metadata)]
Prompt = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARACTERS), Storable]
WebhookUrl = Annotated[str, Field(min_length=1, max_length=2_000), Storable]
ModelName = Annotated[str, Field(min_length=1, max_length=200), Storable]
_ImageSchema = Annotated[str, Field(min_length=1)]
_ImageListSchema = Annotated[list[_ImageSchema], Field(min_length=1, max_length=MAX_INPUT_IMAGES)]
_AnyImageSchema = _ImageSchema | _ImageListSchema
ImageName = Annotated[str, PlainValidator(_check_image, json_schema_input_type=_ImageSchema)]
ImageNames = Annotated[str | list[str], PlainValidator(_check_images, json_schema_input_type=_AnyImageSchema)]
Seconds = Annotated[float, Field(gt=0, le=MAX_JOB_SECONDS, allow_inf_nan=False)]
_DeadlineSchema = Seconds | Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Deadline = Annotated[
    float | datetime, PlainValidator(_check_deadline, json_schema_input_type=_DeadlineSchema)
]
Kind = Literal["image.generate", "video.generate", "audio.generate"]
JobEventName = Literal["job.succeeded", "job.failed", "job.canceled", "job.expired"]


class RequestBody(BaseModel):
    """Base of request bodies: unknown fields are rejected, and values are never converted between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Body = TypeVar("Body", bound=BaseModel)


class AdapterBody(RequestBody):
    """Adapter of a request."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_ADAPTER_NAME_CHARACTERS), Storable]
    weight: Annotated[float, Field(ge=-MAX_ADAPTER_WEIGHT, le=MAX_ADAPTER_WEIGHT, allow_inf_nan=False)] = 1.0


class ControlBody(RequestBody):
    """Use of a ControlNet in a request."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_CONTROL_NAME_CHARACTERS), Storable]
    image: ImageName
    weight: Annotated[float, Field(ge=0, le=MAX_CONTROL_WEIGHT, allow_inf_nan=False)] = 1.0
    start: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    end: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    mode: Annotated[int, Field(ge=0, le=MAX_CONTROL_MODE)] | None = None


def value_type(declared: RequestField) -> Any:
    """Return the type of a field's values, as pydantic checks them."""
    bounds: dict[str, Any] = {
        name: bound for name in ("ge", "gt", "le") if (bound := getattr(declared, name)) is not None
    }
    match declared.kind:
        case FieldKind.TEXT:
            return Annotated[str, Field(max_length=declared.max_length), Storable]
        case FieldKind.CHOICE:
            choices: Any = {"enum": list(declared.choices)}
            return Annotated[str, Field(max_length=100, json_schema_extra=choices), Storable]
        case FieldKind.INTEGER:
            return Annotated[int, Field(**bounds)]
        case FieldKind.NUMBER:
            return Annotated[float, Field(**bounds, allow_inf_nan=False)]
        case FieldKind.IMAGE:
            return ImageName
        case FieldKind.IMAGES:
            return ImageNames
        case FieldKind.ADAPTERS:
            return Annotated[list[AdapterBody], Field(max_length=declared.max_length)]
        case FieldKind.CONTROLS:
            return Annotated[list[ControlBody], Field(max_length=declared.max_length)]


def takes_fields(dialect: Dialect | None = None) -> Callable[[type[Body]], type[Body]]:
    """Give a body the declared fields of a request that a dialect has; those of jobs without one.

    A field that the body writes out itself stays as it is.
    """

    def decorate(body: type[Body]) -> type[Body]:
        added = {
            name: _field_of(declared, is_described=dialect is None)
            for name, declared in _named(dialect)
            if name not in body.model_fields
        }
        return create_model(
            body.__name__, __base__=body, __module__=body.__module__, __doc__=body.__doc__, **added
        )

    return decorate


def input_values(body: RequestBody, *dialects: Dialect) -> dict[str, Any]:
    """Return what a body of another dialect says, by the names of `GenerationInput`."""
    return {declared.name: getattr(body, name) for dialect in dialects for name, declared in _named(dialect)}


def _named(dialect: Dialect | None) -> list[tuple[str, RequestField]]:
    """Return the fields of a dialect by their names in it."""
    fields = FIELDS.values()
    if dialect is None:
        return [(declared.name, declared) for declared in fields]
    return [(declared.name_in(dialect), declared) for declared in fields if dialect in declared.dialects]


def _field_of(declared: RequestField, is_described: bool) -> Any:
    """Return a field as `create_model` takes it; null is what is left out, unless that has a value."""
    annotation = value_type(declared)
    if declared.default is None:
        annotation |= None
    description = declared.description if is_described else None
    return (annotation, Field(default=declared.default, description=description))


@takes_fields()
class GenerationInput(RequestBody):
    """Parameters of images, clips or sounds. A field that is null or left out takes the model's default."""

    prompt: Prompt

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the declared fields


Exact = Annotated[bool, Field(description="Run the job on workers alone whose weights are not quantized.")]


def takes_options(*names: str) -> Callable[[type[Body]], type[Body]]:
    """Give a body those options of jobs, all by default, as they are declared."""

    def decorate(body: type[Body]) -> type[Body]:
        added: Any = {name: _option_field(JOB_OPTIONS[name]) for name in names or JOB_OPTIONS}
        return create_model(
            body.__name__, __base__=body, __module__=body.__module__, __doc__=body.__doc__, **added
        )

    return decorate


def _option_field(declared: dataclasses.Field[Any]) -> Any:
    option, annotation = option_of(declared), declared.type
    bounds = {name: bound for name in ("gt", "ge", "le") if (bound := getattr(option, name)) is not None}
    kind: Any = option_type(declared)
    if kind is str:
        kind = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARACTERS), Storable]
    elif kind is float:
        kind = Annotated[float, Field(allow_inf_nan=False, **bounds)]
    elif bounds:
        kind = Annotated[kind, Field(**bounds)]
    if NoneType in get_args(annotation):
        kind |= None
    return (kind, Field(default=declared.default, description=option.help))


class OptionsBody(RequestBody):
    """Base of bodies that take options of jobs."""

    @property
    def options(self) -> JobOptions:
        """The options that the body has."""
        return JobOptions(**{name: getattr(self, name) for name in JOB_OPTIONS if hasattr(self, name)})


class WebhookBody(RequestBody):
    """Endpoint to notify when the job has ended, in a message signed after Standard Webhooks."""

    url: WebhookUrl
    events: Annotated[list[JobEventName], Field(min_length=1, fail_fast=True)] | None = Field(
        default=None, description="Every final status if left out."
    )


@takes_options()
class NewJobBody(OptionsBody):
    """Job to submit."""

    kind: Kind = "image.generate"
    model: ModelName | None = Field(default=None, description="The server's default if left out.")
    input: GenerationInput
    priority: Annotated[Band, Field(strict=False)] | None = Field(
        default=None, description="The plan's default if left out."
    )
    expires_in: Seconds | None = Field(default=None, description="Longest wait in the queue, in seconds.")
    deadline: Deadline | None = Field(
        default=None,
        description="When the result is needed: seconds from now, or a time (RFC 3339). A job that cannot be "
        "done by then is refused, and one that no longer can expires in the queue.",
    )
    best_effort: bool = Field(
        default=False, description="Run the job even if it misses its `deadline`, which only hurries it then."
    )
    exact: Exact = False
    timeout: Seconds | None = Field(default=None, description="Longest run of one attempt, in seconds.")
    metadata: Metadata = Field(default_factory=dict, description="Returned unchanged; at most 16 KB as JSON.")
    output_format: FileFormat | None = FILE_FORMAT
    webhook: WebhookBody | None = None
    expand_prompt: bool = Field(
        default=False, description="Expand the prompt with a language model; refused if this server has none."
    )
    num_previews: Annotated[int, Field(ge=0, le=MAX_PREVIEWS)] = 0
    live: bool = Field(default=False, description="Store the first clip in parts while it is decoded.")
