"""The abilities of a model, its defaults, and the size of its requests."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from diffuserve.domain.cost import Workload
from diffuserve.domain.errors import ImageTooLarge, InvalidParams, ModelNotCapable
from diffuserve.domain.params import GenerationParams


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Defaults and limits of one model; sizes in pixels, the text length in tokens.

    `has_guidance`: `guidance_scale` means something to the model; 0 and 1 always mean "no guidance".
    `guidance_passes`: forward passes in a step of a guided request: 2 for classifier-free guidance (Ho &
    Salimans 2022, arXiv:2207.12598), 1 where the scale is an input of the model. `max_pixels` bounds
    width × height of one image.

    A video of `num_frames` is `(num_frames - 1) / temporal_stride + 1` latent frames, and each token of a
    latent frame stands for `pixels_per_token` pixels. `has_joint_attention`: the prompt's tokens stand in
    the image's sequence; otherwise the model reads them by cross-attention and they count for nothing
    in a step.

    `learned_min_size` to `learned_max_size` are the sides of the images that the model was trained on; 0 if
    its folder does not say. Others are drawn as well, with a warning.
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
    guidance_passes: int = 1
    has_negative_prompt: bool = False
    min_size: int = 16
    max_size: int = 4096
    max_pixels: int = 4 * 1024 * 1024
    max_images: int = 16
    max_frames: int = 1
    temporal_stride: int = 1
    pixels_per_token: int = 256
    has_joint_attention: bool = True
    learned_min_size: int = 0
    learned_max_size: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelSpec":
        """Build a spec from what `to_dict` returned, here or in another version.

        Unknown names are ignored and missing ones get their defaults. Raise `ValueError` if a field
        without a default is missing.
        """
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        try:
            return cls(**known)
        except TypeError as error:
            raise ValueError(f"not a model spec: {error}") from error

    def num_passes(self, params: GenerationParams) -> int:
        """Return the forward passes that a step of this request takes; 1 without guidance."""
        return self.guidance_passes if (params.guidance_scale or 0) > 1 else 1

    def latent_frames(self, params: GenerationParams) -> int:
        """Return the frames of a request's latents; 1 for an image."""
        return -(-(params.num_frames - 1) // self.temporal_stride) + 1

    def image_tokens(self, params: GenerationParams) -> int:
        """Return the tokens of one image or video, of all its latent frames, without its prompt."""
        assert params.width is not None
        assert params.height is not None
        return self.latent_frames(params) * -(-params.width * params.height // self.pixels_per_token)

    def workload(self, params: GenerationParams) -> Workload:
        """Return the size of a request whose defaults are filled in."""
        num_passes = self.num_passes(params)
        text, image = params.max_sequence_length or 0, self.image_tokens(params)
        return Workload(
            num_sequences=params.num_images * num_passes,
            sequence_tokens=text + image if self.has_joint_attention else image,
            text_tokens=text * num_passes,
            num_pixels=params.num_images * image * self.pixels_per_token,
            num_inference_steps=params.num_inference_steps or 0,
        )

    @property
    def states_learned_sizes(self) -> bool:
        """True if the model's folder says which sizes it was trained on."""
        return self.learned_max_size > 0

    def size_warnings(self, params: GenerationParams) -> tuple[str, ...]:
        """Return a warning if a request, whose defaults are filled in, has a size that was not learned."""
        low, high = self.learned_min_size, self.learned_max_size
        sides = (params.width or 0, params.height or 0)
        if not self.states_learned_sizes or all(low <= side <= high for side in sides):
            return ()
        return (
            f"{self.name} has learned images of {low} to {high} pixels a side; at {sides[0]}x{sides[1]} it "
            f"may draw something else, or nothing. Its own size is {self.width}x{self.height}",
        )

    def resolve(self, params: GenerationParams, seed: int) -> GenerationParams:
        """Return the parameters with every default filled in, `seed` included.

        Raise `InvalidParams` or `ModelNotCapable` if the model cannot do what is asked.
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
        self._check_limits(resolved)
        self._check_abilities(resolved)
        self._check_frames(resolved)
        return resolved

    def _check_size(self, params: GenerationParams) -> None:
        assert params.width is not None
        assert params.height is not None
        for field, value in (("width", params.width), ("height", params.height)):
            if not self.min_size <= value <= self.max_size:
                raise InvalidParams(
                    field, value, f"{self.name} generates {self.min_size}…{self.max_size} pixels a side"
                )
        if params.width * params.height > self.max_pixels:
            size = f"{params.width}x{params.height}"
            raise ImageTooLarge(
                "size", size, f"{self.name} generates at most {self.max_pixels:,} pixels an image"
            )

    def _check_limits(self, params: GenerationParams) -> None:
        assert params.max_sequence_length is not None
        if params.num_images > self.max_images:
            raise InvalidParams(
                "num_images", params.num_images, f"{self.name} generates at most {self.max_images} a request"
            )
        if params.max_sequence_length > self.longest_sequence_length:
            raise InvalidParams(
                "max_sequence_length",
                params.max_sequence_length,
                f"{self.name} reads at most {self.longest_sequence_length} tokens",
            )

    def _check_abilities(self, params: GenerationParams) -> None:
        if params.negative_prompt and not self.has_negative_prompt:
            raise ModelNotCapable(
                "negative_prompt",
                params.negative_prompt,
                f"{self.name} has no negative prompt; describe the wanted image instead",
            )
        if params.guidance_scale not in (0, 1) and not self.has_guidance:
            raise ModelNotCapable(
                "guidance_scale",
                params.guidance_scale,
                f"{self.name} has no guidance; leave it out or give 0",
            )

    def _check_frames(self, params: GenerationParams) -> None:
        """Refuse numbers of frames that are too large, or between two numbers of latent frames."""
        frames, stride = params.num_frames, self.temporal_stride
        if frames > self.max_frames:
            ability = (
                "generates single images"
                if self.max_frames == 1
                else f"generates at most {self.max_frames} frames"
            )
            raise ModelNotCapable("num_frames", frames, f"{self.name} {ability}")
        if (frames - 1) % stride:
            lower = (frames - 1) // stride * stride + 1
            nearest = f"{lower} or {lower + stride}" if lower + stride <= self.max_frames else f"{lower}"
            raise ModelNotCapable(
                "num_frames",
                frames,
                f"{self.name} generates a multiple of {stride} frames, plus 1; try {nearest}",
            )
