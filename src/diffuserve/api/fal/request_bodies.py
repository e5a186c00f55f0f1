"""Arguments and headers of fal's clients, and the jobs that they ask for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from fastapi import Header
from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field, create_model

from diffuserve.api.http.storable import Storable
from diffuserve.api.submit.file_formats import FILE_FORMAT, FileFormat
from diffuserve.api.submit.request_bodies import (
    AdapterBody,
    Body,
    GenerationInput,
    ModelName,
    NewJobBody,
    Prompt,
    RequestBody,
    WebhookBody,
    value_type,
)
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import Band
from diffuserve.domain.jobs.job_options import MAX_JOB_SECONDS, MAX_TEXT_CHARACTERS, JobOptions
from diffuserve.domain.jobs.kinds import own_kind
from diffuserve.domain.models.limits import takes
from diffuserve.domain.models.sizes import well_drawn_size
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.adapter_use import (
    MAX_ADAPTER_NAME_CHARACTERS,
    MAX_ADAPTER_WEIGHT,
    MAX_ADAPTERS,
)
from diffuserve.domain.requests.params import FIELDS
from diffuserve.domain.requests.request_fields import RequestField

Preset = Literal["square_hd", "square", "portrait_4_3", "portrait_16_9", "landscape_4_3", "landscape_16_9"]
_PRESETS: Mapping[Preset, tuple[int, int]] = {
    "square_hd": (1024, 1024),
    "square": (512, 512),
    "portrait_4_3": (768, 1024),
    "portrait_16_9": (576, 1024),
    "landscape_4_3": (1024, 768),
    "landscape_16_9": (1024, 576),
}
_NAMES: Mapping[str, tuple[str, ...]] = {
    "image": ("image_url", "image_urls", "start_image_url"),
    "mask": ("mask_url", "mask_image_url"),
    "control_image": ("control_image_url",),
    "image_prompts": ("image_prompt_url",),
    "last_image": ("end_image_url", "last_image_url"),
    "fps": ("frames_per_second",),
    "seconds": ("duration",),
}
"""Fal's names of fields, its usual one first."""
_OWN = frozenset({"prompt", "adapters", "width", "height"})
_OPTIONAL = ("guidance_scale", "negative_prompt")
"""Fields that programs send to every application, and that models which have none of it go without."""
_SIZE, _LORAS = "image_size", "loras"
_MAX_IGNORED = 20


def _number(value: object) -> object:
    """Return the number in `"5"` and `"5s"`, and any other value as it is."""
    try:
        return float(value.removesuffix("s")) if isinstance(value, str) else value
    except ValueError:
        return value


class SizeBody(RequestBody):
    """Size in pixels."""

    width: Annotated[int, Field(ge=1, le=65_535)]
    height: Annotated[int, Field(ge=1, le=65_535)]


class LoraBody(RequestBody):
    """Adapter of a request: `path` is its name on this server."""

    path: Annotated[str, Field(min_length=1, max_length=MAX_ADAPTER_NAME_CHARACTERS), Storable]
    scale: Annotated[float, Field(ge=-MAX_ADAPTER_WEIGHT, le=MAX_ADAPTER_WEIGHT, allow_inf_nan=False)] = 1.0


def _field_of(declared: RequestField) -> Any:
    annotation = value_type(declared) if declared.default is not None else value_type(declared) | None
    if declared.name == "seconds":
        annotation = Annotated[annotation, BeforeValidator(_number)]
    names = dict.fromkeys((declared.name, *_NAMES.get(declared.name, ()), *declared.aliases))
    return (annotation, Field(default=declared.default, validation_alias=AliasChoices(*names)))


def _takes_arguments(body: type[Body]) -> type[Body]:
    """Give a body the declared fields of a request, by their own names, by fal's, and by those of others."""
    added: Any = {name: _field_of(declared) for name, declared in FIELDS.items() if name not in _OWN}
    return create_model(
        body.__name__, __base__=body, __module__=body.__module__, __doc__=body.__doc__, **added
    )


@_takes_arguments
class FalArguments(RequestBody):
    """Arguments of an application. What no model here takes is left out, and named in the job's metadata."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, populate_by_name=True)

    prompt: Prompt
    image_size: Preset | SizeBody | None = None
    aspect_ratio: Annotated[str, Field(pattern="^[1-9][0-9]{0,3}:[1-9][0-9]{0,3}$")] | None = None
    width: Annotated[int, Field(ge=1, le=65_535)] | None = None
    height: Annotated[int, Field(ge=1, le=65_535)] | None = None
    loras: Annotated[list[LoraBody], Field(max_length=MAX_ADAPTERS)] | None = None
    output_format: FileFormat | None = FILE_FORMAT
    sync_mode: bool = Field(default=False, description="Have files as data URIs in the result.")
    expand_prompt: bool = Field(
        default=False, validation_alias=AliasChoices("expand_prompt", "enable_prompt_expansion")
    )
    fallback_model: ModelName | None = None

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the declared fields

    def job(
        self, spec: ModelSpec, options: JobOptions, priority: Band | None, webhook: str | None
    ) -> NewJobBody:
        """Build the body of the job for this model."""
        width, height = self._size(spec)
        said = {name: getattr(self, name) for name in FIELDS if name not in _OWN}
        adapters = [AdapterBody(name=lora.path, weight=lora.scale) for lora in self.loras or ()]
        dropped = [name for name in _OPTIONAL if said[name] is not None and not takes(spec, FIELDS[name])]
        said |= dict.fromkeys(dropped)
        said |= {"width": width, "height": height, "adapters": adapters or None}
        return NewJobBody.model_construct(
            kind=own_kind(spec),
            model=spec.name,
            input=GenerationInput.model_construct(prompt=self.prompt, **said),
            priority=priority,
            metadata={"fal": {"sync_mode": self.sync_mode, "ignored": sorted([*self._ignored(), *dropped])}},
            output_format=self.output_format,
            webhook=None if webhook is None else WebhookBody.model_construct(url=webhook, events=None),
            expand_prompt=self.expand_prompt,
            **vars(options),
        )

    def _size(self, spec: ModelSpec) -> tuple[int | None, int | None]:
        """Return the size that was given, or the nearest to a preset or of proportions that is drawn well."""
        if isinstance(self.image_size, SizeBody):
            return self.image_size.width, self.image_size.height
        if self.image_size is not None:
            return well_drawn_size(spec, *_PRESETS[self.image_size])
        if self.aspect_ratio is not None and self.width is None and self.height is None:
            across, down = map(int, self.aspect_ratio.split(":"))
            side = math.sqrt(spec.width * spec.height / (across * down))
            return well_drawn_size(spec, *spec.nearest_size(across * side, down * side))
        return self.width, self.height

    def _ignored(self) -> list[str]:
        return [name[:100] for name in sorted(self.model_extra or ()) if name.isprintable()][:_MAX_IGNORED]


def name_in_arguments(field: str) -> str:
    """Return how fal calls a field of a job's input or body."""
    if field.partition(".")[0] in ("width", "height"):
        return _SIZE
    if field.partition(".")[0] == "adapters":
        return _LORAS
    return _HEADERS.get(field) or next(iter(_NAMES.get(field, (field,))))


_HEADERS = {
    "webhook.url": "fal_webhook",
    "start_timeout_seconds": "X-Fal-Request-Timeout",
    "retention_seconds": "X-Fal-Object-Lifecycle-Preference",
    "worker_hint": "X-Fal-Runner-Hint",
    "priority": "X-Fal-Queue-Priority",
}
_Timeout = Annotated[float | None, Header(gt=0, le=MAX_JOB_SECONDS)]
_Hint = Annotated[Annotated[str, Storable] | None, Header(min_length=1, max_length=MAX_TEXT_CHARACTERS)]


@dataclass(frozen=True)
class QueueHeaders:
    """Headers in which fal's clients say how a request is kept, tried and placed."""

    x_fal_request_timeout: _Timeout = None
    x_fal_runner_hint: _Hint = None
    x_fal_queue_priority: Annotated[Literal["normal", "low"] | None, Header()] = None
    x_fal_no_retry: Annotated[bool, Header()] = False
    x_fal_store_io: Annotated[bool, Header()] = True
    x_fal_object_lifecycle_preference: Annotated[str | None, Header(max_length=1_000)] = None
    x_app_fal_disable_fallback: Annotated[bool, Header()] = False

    @property
    def priority(self) -> Band | None:
        """The priority of the job; `None` for the plan's default."""
        return Band.BATCH if self.x_fal_queue_priority == "low" else None

    def options(self, fallback_model: str | None, longest_kept: float) -> JobOptions:
        """Return the options of the job. A longer retention than the server's is only a preference."""
        kept = _kept_seconds(self.x_fal_object_lifecycle_preference)
        return JobOptions(
            retention_seconds=kept if kept is None or kept < longest_kept else None,
            store=self.x_fal_store_io,
            max_attempts=1 if self.x_fal_no_retry else None,
            start_timeout_seconds=self.x_fal_request_timeout,
            fallback_model=None if self.x_app_fal_disable_fallback else fallback_model,
            worker_hint=self.x_fal_runner_hint,
        )


def _kept_seconds(preference: str | None) -> float | None:
    """Return `expiration_duration_seconds` of a lifecycle preference. Raise `InvalidParams`."""
    if preference is None:
        return None
    try:
        seconds = orjson.loads(preference).get("expiration_duration_seconds")
    except (ValueError, AttributeError):
        seconds = ""
    if seconds is None or (isinstance(seconds, int | float) and seconds > 0):
        return None if seconds is None else float(seconds)
    remedy = 'must be JSON such as {"expiration_duration_seconds": 3600}'
    raise InvalidParams("X-Fal-Object-Lifecycle-Preference", preference, remedy)
