"""The parameters of a request. Names and meanings are diffusers'."""

import math
from dataclasses import asdict, dataclass

from diffuserve.domain.errors import InvalidParams

MAX_PROMPT_CHARACTERS = 2_000
MAX_STEPS = 100
MAX_GUIDANCE_SCALE = 20.0
MAX_SEED = 2**63 - 1
MAX_IMAGES = 16
SIZE_MULTIPLE = 16


@dataclass(frozen=True, kw_only=True)
class GenerationParams:
    """A request for images. `None` stands for the model's own default.

    `width` and `height` are in pixels, positive multiples of 16; `num_inference_steps` lies in
    1…100, `guidance_scale` in 0…20, `seed` in 0…2⁶³-1. Image `i` of `num_images` is generated
    with seed `seed + i`. Without a seed the engine draws a random one and reports it.

    Raise `InvalidParams` (a `ValueError`) that names the field, the value and the remedy.
    """

    prompt: str
    negative_prompt: str = ""
    width: int | None = None
    height: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    seed: int | None = None
    num_images: int = 1
    num_frames: int = 1
    max_sequence_length: int | None = None

    def __post_init__(self) -> None:
        _check_text("prompt", self.prompt)
        if not self.prompt.strip():
            raise InvalidParams("prompt", self.prompt, "must not be empty; describe the image")
        _check_text("negative_prompt", self.negative_prompt)
        _check_size("width", self.width)
        _check_size("height", self.height)
        _check_integer("num_inference_steps", self.num_inference_steps, 1, MAX_STEPS)
        _check_guidance(self.guidance_scale)
        _check_count("num_images", self.num_images, MAX_IMAGES)
        _check_count("num_frames", self.num_frames, None)
        _check_integer("max_sequence_length", self.max_sequence_length, 1, None)
        _check_integer("seed", self.seed, 0, MAX_SEED)
        if self.seed is not None and self.seed + self.num_images - 1 > MAX_SEED:
            raise InvalidParams(
                "seed", self.seed, f"seed + num_images - 1 must be below 2**63; num_images={self.num_images}"
            )

    def to_dict(self) -> dict[str, str | int | float]:
        """Return the parameters that are set, ready for JSON."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidParams(field, value, "must be a string")
    if len(value) > MAX_PROMPT_CHARACTERS:
        raise InvalidParams(
            field, value, f"has {len(value):,} characters; at most {MAX_PROMPT_CHARACTERS:,} are allowed"
        )
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidParams(field, value, "contains an unpaired surrogate; send valid Unicode")


def _check_size(field: str, value: object) -> None:
    if value is None:
        return
    _check_integer(field, value, 1, None)
    assert isinstance(value, int)
    if value % SIZE_MULTIPLE:
        lower, upper = value // SIZE_MULTIPLE * SIZE_MULTIPLE, -(-value // SIZE_MULTIPLE) * SIZE_MULTIPLE
        nearest = f"{lower} or {upper}" if lower else f"{upper}"
        raise InvalidParams(field, value, f"must be a multiple of {SIZE_MULTIPLE} pixels; try {nearest}")


def _check_guidance(value: object) -> None:
    if value is None:
        return
    is_finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if isinstance(value, bool) or not is_finite:
        raise InvalidParams("guidance_scale", value, "must be a finite number")
    assert isinstance(value, int | float)
    if not 0 <= value <= MAX_GUIDANCE_SCALE:
        raise InvalidParams("guidance_scale", value, f"must lie in 0…{MAX_GUIDANCE_SCALE:g}")


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
