"""Declare a request's fields once: as dataclass fields that reach every interface.

A field made by `request_field` says what its values are, which models take it, and by which names it travels.
From that derive the check of a request, the bodies of the API, the options of the command line, what
`GET /v1/models` tells of a model, the form of the page, and the tables of the reference.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, get_args, get_origin

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.control_use import ControlUse
from diffuserve.domain.requests.input_image import InputImage, Mode
from diffuserve.domain.text.nearest import did_you_mean

_KEY = "request_field"


class FieldKind(StrEnum):
    """Type of a field's values."""

    TEXT = "text"
    CHOICE = "choice"
    INTEGER = "integer"
    NUMBER = "number"
    IMAGE = "image"
    IMAGES = "images"
    ADAPTERS = "adapters"
    CONTROLS = "controls"


class Topic(StrEnum):
    """Part of a request without which some of its fields mean nothing."""

    IMAGE = "image"
    MASK = "mask"
    CONTROL = "control"
    IMAGE_PROMPT = "image_prompt"
    CLIP = "clip"


class Dialect(StrEnum):
    """An API beside that of jobs, whose bodies have some of the fields."""

    FLAT = "flat"
    OPENAI_IMAGES = "openai_images"
    OPENAI_EDITS = "openai_edits"
    OPENAI_VIDEOS = "openai_videos"


DEFAULT_DIALECTS = frozenset({Dialect.FLAT, Dialect.OPENAI_IMAGES, Dialect.OPENAI_VIDEOS})
"""Dialects that have a field unless it says otherwise; what has images has them for edits too."""


@dataclass(frozen=True, kw_only=True)
class RequestField:
    """Declaration of a field; name, kind and default are those of the dataclass's field.

    `help` is a sentence for people, as the command line shows it, and `description` what the OpenAPI document
    and the reference say instead. Numbers lie between `ge`, or above `gt`, and `le`; `remedy` ends the error
    of others. A text has at most `max_length` characters, and of images there are at most so many, whose
    pixels are in `mode`. Of adapters and controls there are at most so many, too.

    Models take the field if the attribute `needs` of their spec is true, and if they have one of `samplers`,
    which alone read it. Others refuse it with the words `refusal` after their name, unless the value is one
    of `neutral`, which asks for nothing. Models whose attribute `needed_by` is true refuse requests without
    it, with the words `demand`. A field that means nothing without another one has its name in `beside`, and
    `lack` are the words for requests that lack that one. `standard` is what leaving it out amounts to, if no
    model says so.

    `option` are its flags on the command line, `flat_name` is its name in the flat API, and `aliases` are
    names by which other tools know it. With a `label` the page has a control for it, with a `hint` beside it,
    and numbers that go by `step`.
    """

    name: str = ""
    kind: FieldKind = FieldKind.TEXT
    default: Any = None
    help: str = ""
    description: str | None = None
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    remedy: str = ""
    max_length: int = 0
    mode: Mode = "RGB"
    choices: tuple[str, ...] = ()
    needs: str = ""
    samplers: tuple[str, ...] = ()
    refusal: str = ""
    needed_by: str = ""
    demand: str = ""
    beside: str = ""
    lack: str = ""
    neutral: tuple[Any, ...] = ()
    standard: Any = None
    topic: Topic | None = None
    option: tuple[str, ...] = ()
    flat_name: str = ""
    aliases: tuple[str, ...] = ()
    dialects: frozenset[Dialect] = DEFAULT_DIALECTS
    label: str | None = None
    hint: str | None = None
    step: float | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of its option."""
        return self.option or (f"--{self.name.replace('_', '-')}",)

    @property
    def is_image(self) -> bool:
        """True if its values are images, or have one each."""
        return self.kind in (FieldKind.IMAGE, FieldKind.IMAGES, FieldKind.CONTROLS)

    def name_in(self, dialect: Dialect) -> str:
        """Return the name of the field in a dialect."""
        return self.flat_name or self.name if dialect is Dialect.FLAT else self.name

    def asks_for_something(self, value: Any) -> bool:
        """Return whether a value is given and says anything."""
        return value is not None and value not in self.neutral

    def check(self, value: Any) -> None:
        """Raise `InvalidParams` for a value that no model takes."""
        if value is None and self.default is None:
            return
        parts = value if self.kind is FieldKind.IMAGES and isinstance(value, tuple) else (value,)
        for part in parts:
            if (remedy := self._fault(part)) is not None:
                raise InvalidParams(self.name, part, remedy)
        if self.kind is FieldKind.IMAGES and len(parts) > self.max_length:
            raise InvalidParams(self.name, len(parts), f"at most {self.max_length} images are allowed")

    def _fault(self, value: Any) -> str | None:
        match self.kind:
            case FieldKind.TEXT:
                return self._fault_of_text(value)
            case FieldKind.CHOICE:
                return self._fault_of_choice(value)
            case FieldKind.INTEGER:
                return self._fault_of_integer(value)
            case FieldKind.NUMBER:
                return self._fault_of_number(value)
            case FieldKind.IMAGE | FieldKind.IMAGES:
                is_named = isinstance(value, InputImage | str) and value != ""
                return None if is_named else "must name an image"
            case FieldKind.ADAPTERS | FieldKind.CONTROLS:
                return None  # each checks itself

    def _fault_of_text(self, value: object) -> str | None:
        if not isinstance(value, str):
            return "must be a string"
        if len(value) > self.max_length:
            return f"has {len(value):,} characters; at most {self.max_length:,} are allowed"
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            return "contains an unpaired surrogate; send valid Unicode"
        return None

    def _fault_of_choice(self, value: object) -> str | None:
        if value in self.choices:
            return None
        hint = did_you_mean(value, self.choices) if isinstance(value, str) else ""
        return f"must be one of {', '.join(self.choices)}{hint}"

    def _fault_of_integer(self, value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return "must be a whole number"
        if self._is_within(value):
            return None
        return f"must be at least {self.ge}" if self.le is None else f"must be in {self.ge}…{self.le}"

    def _fault_of_number(self, value: object) -> str | None:
        is_finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        if isinstance(value, bool) or not is_finite:
            return "must be a finite number"
        if self._is_within(value):  # type: ignore[arg-type]
            return None
        low, without = (self.ge, "") if self.gt is None else (self.gt, f", without {self.gt:g}")
        return f"must lie in {low:g}…{self.le:g}{without}{self.remedy and f'; {self.remedy}'}"

    def _is_within(self, value: float) -> bool:
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
        )


def request_field(default: Any = None, help: str = "", **declared: Any) -> Any:
    """Return a dataclass field of a request; `declared` are fields of `RequestField`.

    `None` stands for the model's own default, and `MISSING` for none: every request has the field then.
    """
    declared.setdefault("standard", None if default is MISSING else default)
    return field(default=default, metadata={_KEY: RequestField(help=help, default=default, **declared)})


def request_fields(request: type) -> Mapping[str, RequestField]:
    """Return the declarations of a dataclass's fields, by name."""
    declared: Any = fields(request)
    return {
        each.name: replace(each.metadata[_KEY], name=each.name, kind=_kind_of(each.type, each.metadata[_KEY]))
        for each in declared
    }


def _kind_of(annotation: Any, declared: RequestField) -> FieldKind:
    kinds = get_args(annotation) or (annotation,)
    lists = {item for kind in kinds if get_origin(kind) is tuple for item in get_args(kind)}
    if AdapterUse in lists:
        return FieldKind.ADAPTERS
    if ControlUse in lists:
        return FieldKind.CONTROLS
    if lists:
        return FieldKind.IMAGES
    if InputImage in kinds:
        return FieldKind.IMAGE
    if int in kinds:
        return FieldKind.INTEGER
    if float in kinds:
        return FieldKind.NUMBER
    return FieldKind.CHOICE if declared.choices else FieldKind.TEXT
