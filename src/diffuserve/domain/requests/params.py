"""The parameters of a request. Names and meanings are diffusers'."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.known_fields import known_fields
from diffuserve.domain.requests.input_image import ImageInput, InputImage
from diffuserve.domain.requests.samplers import SAMPLERS
from diffuserve.domain.sendable import Sendable
from diffuserve.domain.text.nearest import did_you_mean

MAX_PROMPT_CHARACTERS = 2_000
MAX_STEPS = 100
MAX_GUIDANCE_SCALE = 100.0
MAX_SEED = 2**63 - 1
MAX_IMAGES = 16
MAX_FPS = 120
MAX_INPUT_IMAGES = 16
MAX_SIDE = 65_536


@dataclass(frozen=True, kw_only=True)
class GenerationParams(Sendable):
    """A request for images or clips. `None` stands for the model's own default.

    `width` and `height` are in pixels, positive multiples of the model's `size_multiple`;
    `num_inference_steps` lies in 1…100, `guidance_scale` in 0…100, `seed` in 0…2⁶³-1. Image `i` of
    `num_images` is generated with seed `seed + i`. Without a seed the engine draws a random one and reports
    it. No negative prompt and an empty one are different things to some models. `sampler` is one of
    `diffuserve.domain.requests.samplers`.

    A clip has `num_frames` frames, shown at `fps` in 1…120 a second; 1 frame is an image.

    `image` is the image to start from, to fill in where `mask` is white, or to edit; models that take
    several as references take a sequence. `strength` in 0…1, without 0, is the part of the steps that an
    image to start from goes through: 1 keeps nothing of it.

    Raise `InvalidParams` (a `ValueError`) that names the field, the value and the remedy.
    """

    prompt: str
    negative_prompt: str | None = None
    width: int | None = None
    height: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    seed: int | None = None
    num_images: int = 1
    num_frames: int | None = None
    fps: int | None = None
    max_sequence_length: int | None = None
    sampler: str | None = None
    image: ImageInput | tuple[ImageInput, ...] | list[ImageInput] | None = None
    mask: ImageInput | None = None
    strength: float | None = None

    def __post_init__(self) -> None:
        _check_text("prompt", self.prompt)
        if not self.prompt.strip():
            raise InvalidParams("prompt", self.prompt, "must not be empty; describe the image")
        if self.negative_prompt is not None:
            _check_text("negative_prompt", self.negative_prompt)
        _check_integer("width", self.width, 1, MAX_SIDE)
        _check_integer("height", self.height, 1, MAX_SIDE)
        _check_integer("num_inference_steps", self.num_inference_steps, 1, MAX_STEPS)
        _check_guidance(self.guidance_scale)
        _check_count("num_images", self.num_images, MAX_IMAGES)
        _check_integer("num_frames", self.num_frames, 1, None)
        _check_integer("fps", self.fps, 1, MAX_FPS)
        _check_integer("max_sequence_length", self.max_sequence_length, 1, None)
        _check_integer("seed", self.seed, 0, MAX_SEED)
        if self.seed is not None and self.seed + self.num_images - 1 > MAX_SEED:
            raise InvalidParams(
                "seed", self.seed, f"seed + num_images - 1 must be below 2**63; num_images={self.num_images}"
            )
        if isinstance(self.image, list):
            object.__setattr__(self, "image", tuple(self.image))
        _check_sampler(self.sampler)
        _check_images(self.images, self.mask)
        _check_strength(self.strength, self.images)

    @property
    def images(self) -> tuple[ImageInput, ...]:
        """The input images in order."""
        if self.image is None:
            return ()
        return tuple(self.image) if isinstance(self.image, tuple | list) else (self.image,)

    def with_images(self, convert: Callable[[str, ImageInput], ImageInput]) -> "GenerationParams":
        """Return the parameters with `convert(field, image)` in place of each image and of the mask."""
        if not self.images:
            return self
        images = tuple(convert("image", image) for image in self.images)
        return replace(
            self,
            image=images[0] if isinstance(self.image, InputImage | str) else images,
            mask=None if self.mask is None else convert("mask", self.mask),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters that are set, ready for JSON; input images are named, not included."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _plain(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "GenerationParams":
        """Build parameters from what `to_dict` returned, without the fields of newer versions.

        Raise `InvalidParams` for bad values.
        """
        return cls(**{name: _restored(value) for name, value in known_fields(cls, values).items()})


def _plain(value: Any) -> Any:
    if isinstance(value, InputImage):
        return value.to_dict()
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _restored(value: Any) -> Any:
    if isinstance(value, Mapping):
        return InputImage.from_dict(value)
    return tuple(_restored(item) for item in value) if isinstance(value, list) else value


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidParams(field, value, "must be a string")
    if len(value) > MAX_PROMPT_CHARACTERS:
        raise InvalidParams(
            field, value, f"has {len(value):,} characters; at most {MAX_PROMPT_CHARACTERS:,} are allowed"
        )
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidParams(field, value, "contains an unpaired surrogate; send valid Unicode")


def _check_guidance(value: object) -> None:
    _check_number("guidance_scale", value)
    if value is not None and not 0 <= value <= MAX_GUIDANCE_SCALE:  # type: ignore[operator]
        raise InvalidParams("guidance_scale", value, f"must lie in 0…{MAX_GUIDANCE_SCALE:g}")


def _check_number(field: str, value: object) -> None:
    if value is None:
        return
    is_finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if isinstance(value, bool) or not is_finite:
        raise InvalidParams(field, value, "must be a finite number")


def _check_sampler(value: object) -> None:
    if value is not None and value not in SAMPLERS:
        hint = did_you_mean(value, SAMPLERS) if isinstance(value, str) else ""
        raise InvalidParams("sampler", value, f"must be one of {', '.join(SAMPLERS)}{hint}")


def _check_images(images: Sequence[object], mask: object) -> None:
    masks = () if mask is None else (mask,)
    for field, value in (*(("image", image) for image in images), *(("mask", mask) for mask in masks)):
        if not isinstance(value, InputImage | str) or value == "":
            raise InvalidParams(field, value, "must name an image")
    if len(images) > MAX_INPUT_IMAGES:
        raise InvalidParams("image", len(images), f"at most {MAX_INPUT_IMAGES} images are allowed")
    if mask is not None and not images:
        raise InvalidParams("mask", _name(mask), "needs the image that it belongs to; give image")


def _check_strength(value: object, images: Sequence[object]) -> None:
    _check_number("strength", value)
    if value is None:
        return
    if not 0 < value <= 1:  # type: ignore[operator]
        raise InvalidParams("strength", value, "must lie in 0…1, without 0; 1 keeps nothing of the image")
    if not images:
        raise InvalidParams("strength", value, "needs an image to start from; give image, or leave it out")


def _name(image: object) -> object:
    return image.id if isinstance(image, InputImage) else image


def _check_count(field: str, value: object, high: int | None) -> None:
    if value is None:
        raise InvalidParams(field, value, "must be a whole number")
    _check_integer(field, value, 1, high)


def _check_integer(field: str, value: object, low: int, high: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidParams(field, value, "must be a whole number")
    if value < low or (high is not None and value > high):
        span = f"at least {low}" if high is None else f"in {low}…{high}"
        raise InvalidParams(field, value, f"must be {span}")
