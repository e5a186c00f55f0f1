"""Input images of requests."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, runtime_checkable

from diffuserve.domain.sendable import Sendable

Mode = Literal["RGB", "L"]
_SCALED_MULTIPLE = 32


@dataclass(frozen=True)
class InputImage(Sendable):
    """An image whose size is known. Its `id` is an uploaded file's, or a hash of the pixels.

    `pixels` are rows of bytes from the top, three bytes per pixel in `RGB` and one in `L`; `None` where only
    the size matters, as on the control plane. Images with the same id are equal.
    """

    id: str
    width: int
    height: int
    mode: Mode = "RGB"
    pixels: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def num_pixels(self) -> int:
        return self.width * self.height

    def to_dict(self) -> dict[str, Any]:
        """Return the image's id and size, without its pixels, ready for JSON."""
        return {"id": self.id, "width": self.width, "height": self.height, "mode": self.mode}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "InputImage":
        """Build an image, without pixels, from what `to_dict` returned."""
        return cls(values["id"], values["width"], values["height"], values.get("mode", "RGB"))

    @classmethod
    def blank(cls, width: int, height: int, mode: Mode = "RGB") -> "InputImage":
        """Return a white image, for requests whose content does not matter."""
        num_bytes = width * height * len(mode)
        return cls(f"blank {mode} {width}x{height}", width, height, mode, b"\xff" * num_bytes)

    def fits(self, width: int, height: int, slack: int = 1) -> bool:
        """Return whether a size has the image's proportions, up to `slack` pixels of one side."""
        return (
            abs(height - width * self.height / self.width) <= slack
            or abs(width - height * self.width / self.height) <= slack
        )

    def fitted(self, max_pixels: int, multiple: int) -> tuple[int, int]:
        """Return this size or the nearest smaller one of about the same proportions, in multiples."""
        scale = min(1.0, math.sqrt(max_pixels / self.num_pixels))
        short, long = sorted(int(scale * side) // multiple for side in (self.width, self.height))
        short = max(short, 1)
        long = max(min(long, max_pixels // (short * multiple**2)), 1)
        sides = (short * multiple, long * multiple)
        return sides if self.width <= self.height else sides[::-1]

    def scaled(self, num_pixels: int, multiple: int = _SCALED_MULTIPLE) -> tuple[int, int]:
        """Return the size of about so many pixels, and of about these proportions, in the nearest multiples.

        Reference implementation: `calculate_dimensions` of diffusers' `QwenImageEditPlusPipeline`.
        """
        width = math.sqrt(num_pixels * self.width / self.height)
        height = width / (self.width / self.height)
        return max(round(width / multiple), 1) * multiple, max(round(height / multiple), 1) * multiple


ImageInput = InputImage | str
"""An image, or a name that leads to one: a path for the engine, a file's id or a URL for the server."""


@runtime_checkable
class BringsImage(Protocol):
    """A value of a request that has an image among other things."""

    @property
    def image(self) -> ImageInput: ...
    def with_image(self, image: ImageInput) -> Self:
        """Return the same with another image."""
        ...


def each_image(value: Any) -> tuple[Any, ...]:
    """Return the images of a field's value: none, one, or several."""
    if value is None:
        return ()
    several = value if isinstance(value, tuple | list) else (value,)
    return tuple(each.image if isinstance(each, BringsImage) else each for each in several)


def converted(value: Any, convert: Callable[[ImageInput], ImageInput]) -> Any:
    """Return a field's value with each image converted; one stays one, and several stay several."""
    if isinstance(value, tuple | list):
        return tuple(converted(each, convert) for each in value)
    return value.with_image(convert(value.image)) if isinstance(value, BringsImage) else convert(value)
