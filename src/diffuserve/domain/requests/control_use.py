"""The ControlNets of a request."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.input_image import ImageInput, InputImage
from diffuserve.domain.sendable import Sendable

MAX_CONTROLS = 3
MAX_CONTROL_WEIGHT = 2.0
MAX_CONTROL_MODE = 63
MAX_CONTROL_NAME_CHARACTERS = 100
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_CONTROL_NAME_CHARACTERS - 1}}}")
_WORDS = "must be NAME[:WEIGHT[:START-END]]=IMAGE, as in canny:0.8:0-0.5=edges.png"
_OPTIONAL = {"weight", "start", "end", "mode"}


@dataclass(frozen=True)
class ControlUse(Sendable):
    """A ControlNet that a request asks for by its `name`, and the `image` that it follows.

    What it adds is multiplied by `weight`, 0 to 2. It acts in the steps that lie within `start` to `end`,
    parts of all steps that the request takes. `mode` is the kind of control image, for ControlNets that know
    several. Raise `InvalidParams`.
    """

    name: str
    image: ImageInput
    weight: float = 1.0
    start: float = 0.0
    end: float = 1.0
    mode: int | None = None

    def __post_init__(self) -> None:
        if not is_control_name(self.name):
            raise _refused(self.name, "must be a name of letters, digits, '.', '_' and '-'")
        if not isinstance(self.image, InputImage | str) or self.image == "":
            raise _refused(self.image, f"the image of {self.name!r} must name an image")
        for field, most in (("weight", MAX_CONTROL_WEIGHT), ("start", 1.0), ("end", 1.0)):
            value = getattr(self, field)
            if not _is_within(value, most):
                raise _refused(value, f"the {field} of {self.name!r} must be a number in 0…{most:g}")
            object.__setattr__(self, field, float(value))
        if self.start >= self.end:
            remedy = f"the start of {self.name!r} must be before its end, {self.end:g}"
            raise _refused(self.start, remedy)
        if self.mode is not None and (isinstance(self.mode, bool) or not _is_mode(self.mode)):
            raise _refused(self.mode, f"the mode of {self.name!r} must be in 0…{MAX_CONTROL_MODE}")

    @classmethod
    def of(cls, value: object) -> "ControlUse":
        """Return what a value says: a use, its fields by name, or `NAME[:WEIGHT[:START-END]]=IMAGE`.

        Raise `InvalidParams` for anything else.
        """
        if isinstance(value, ControlUse):
            return value
        if isinstance(value, str):
            return cls._parsed(value)
        if isinstance(value, Mapping) and {"name", "image"} <= value.keys() <= {"name", "image"} | _OPTIONAL:
            image = value["image"]
            named = InputImage.from_dict(image) if isinstance(image, Mapping) else image
            return cls(**{**value, "image": named})
        raise _refused(value, f"must have a name and an image, and may have {', '.join(sorted(_OPTIONAL))}")

    def acts_in(self, step: int, num_steps: int) -> bool:
        """Return whether it acts in a step of a request that takes `num_steps`; `step` counts from 0."""
        return self.start <= step / num_steps and (step + 1) / num_steps <= self.end

    def with_image(self, image: ImageInput) -> Self:
        """Return the same use of another image."""
        return replace(self, image=image)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        image = self.image.to_dict() if isinstance(self.image, InputImage) else self.image
        values = {"name": self.name, "image": image, "weight": self.weight, "start": self.start}
        return values | {"end": self.end} | ({} if self.mode is None else {"mode": self.mode})

    @classmethod
    def _parsed(cls, text: str) -> "ControlUse":
        said, separator, image = text.partition("=")
        name, *numbers = said.split(":")
        if not separator or len(numbers) > 2:
            raise _refused(text, _WORDS)
        try:
            start, end = map(float, numbers[1].split("-")) if len(numbers) == 2 else (0.0, 1.0)
            weight = float(numbers[0]) if numbers else 1.0
        except ValueError as error:
            raise _refused(text, _WORDS) from error
        return cls(name, image, weight, start, end)


def control_uses(value: object) -> tuple[ControlUse, ...] | None:
    """Return the uses that a request's value says; `None` if there are none.

    Raise `InvalidParams` for more than three.
    """
    if value is None:
        return None
    if not isinstance(value, tuple | list):
        raise _refused(value, "must be a list of controls, each with a name and an image")
    uses = tuple(map(ControlUse.of, value))
    if len(uses) > MAX_CONTROLS:
        raise _refused(len(uses), f"at most {MAX_CONTROLS} controls are allowed")
    return uses or None


def is_control_name(name: object) -> bool:
    """Return whether a ControlNet may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _is_within(value: object, most: float) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and 0 <= value <= most  # type: ignore[arg-type, operator]


def _is_mode(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= MAX_CONTROL_MODE


def _refused(value: object, remedy: str) -> InvalidParams:
    return InvalidParams("controls", value, remedy)
