"""What a model can do, and what it does when it is not told."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from diffuserve.domain.cost import Workload
from diffuserve.domain.errors import ImageTooLarge, InvalidParams, ModelNotCapable
from diffuserve.domain.params import GenerationParams


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Defaults and limits of one model; sizes in pixels, the text length in tokens.

    `has_guidance` says whether `guidance_scale` means anything to the model; 0 and 1 always mean
    "no guidance". `max_pixels` bounds width × height of one image, and each token of the packed
    sequence stands for `pixels_per_token` of them.
    """

    name: str
    family: str
    width: int
    height: int
    num_inference_steps: int
    max_sequence_length: int
    longest_sequence_length: int
    guidance_scale: float = 0.0
    has_guidance: bool = False
    has_negative_prompt: bool = False
    min_size: int = 16
    max_size: int = 4096
    max_pixels: int = 4 * 1024 * 1024
    max_images: int = 16
    max_frames: int = 1
    pixels_per_token: int = 256

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelSpec":
        """Raises `ValueError` for anything but `to_dict`'s own shape; names it does not know are left out."""
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        try:
            return cls(**known)
        except TypeError as error:
            raise ValueError(f"not a model spec: {error}") from error

    def workload(self, params: GenerationParams) -> Workload:
        """The size of a request whose defaults are filled in: text and image in one sequence."""
        assert params.width is not None
        assert params.height is not None
        text = params.max_sequence_length or 0
        image = -(-params.width * params.height * params.num_frames // self.pixels_per_token)
        return Workload(
            num_sequences=params.num_images,
            sequence_tokens=text + image,
            text_tokens=text,
            num_pixels=params.num_images * image * self.pixels_per_token,
            num_inference_steps=params.num_inference_steps or 0,
        )

    def resolve(self, params: GenerationParams, seed: int) -> GenerationParams:
        """Fill in what was left open, `seed` included.

        Raises `InvalidParams` or `ModelNotCapable` where the model cannot do what is asked.
        """
        resolved = replace(
            params,
            width=self.width if params.width is None else params.width,
            height=self.height if params.height is None else params.height,
            num_inference_steps=params.num_inference_steps or self.num_inference_steps,
            guidance_scale=self.guidance_scale if params.guidance_scale is None else params.guidance_scale,
            max_sequence_length=params.max_sequence_length or self.max_sequence_length,
            seed=seed if params.seed is None else params.seed,
        )
        self._check_size(resolved)
        self._check_abilities(resolved)
        return resolved

    def _check_size(self, params: GenerationParams) -> None:
        assert params.width is not None
        assert params.height is not None
        for field, value in (("width", params.width), ("height", params.height)):
            if not self.min_size <= value <= self.max_size:
                raise InvalidParams(
                    field, value, f"{self.name} draws {self.min_size}…{self.max_size} pixels a side"
                )
        if params.width * params.height > self.max_pixels:
            size = f"{params.width}x{params.height}"
            raise ImageTooLarge(
                "size", size, f"{self.name} draws at most {self.max_pixels:,} pixels an image"
            )

    def _check_abilities(self, params: GenerationParams) -> None:
        assert params.max_sequence_length is not None
        if params.num_images > self.max_images:
            raise InvalidParams(
                "num_images", params.num_images, f"{self.name} draws at most {self.max_images} a request"
            )
        if params.max_sequence_length > self.longest_sequence_length:
            raise InvalidParams(
                "max_sequence_length",
                params.max_sequence_length,
                f"{self.name} reads at most {self.longest_sequence_length} tokens",
            )
        if params.negative_prompt and not self.has_negative_prompt:
            raise ModelNotCapable(
                "negative_prompt", params.negative_prompt, f"{self.name} has none; say what to draw instead"
            )
        if params.guidance_scale not in (0, 1) and not self.has_guidance:
            raise ModelNotCapable(
                "guidance_scale",
                params.guidance_scale,
                f"{self.name} has no guidance; leave it out or give 0",
            )
        if params.num_frames > self.max_frames:
            remedy = "draws single images" if self.max_frames == 1 else f"draws at most {self.max_frames}"
            raise ModelNotCapable("num_frames", params.num_frames, f"{self.name} {remedy}")
