"""The contract between the engine and a model family.

A `Pipeline` holds weights and no request's progress: everything of a request lives in the engine's
`RequestState`, so requests at different steps can share one forward pass.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from PIL.Image import Image
from torch import Tensor

from diffuserve.domain.cost import CostFit, Workload
from diffuserve.domain.model_spec import ModelSpec
from diffuserve.domain.params import GenerationParams
from diffuserve.samplers.base import NoiseSchedule, Sampler

Frames = list[Image]  # one image is a list of one frame


@dataclass(frozen=True)
class Conditioning:
    """What the text encoders made of a prompt; families add their tensors.

    `warnings` tells the person what was changed on the way, such as a prompt that was cut.
    """

    warnings: tuple[str, ...]


@dataclass(frozen=True)
class DenoiseInput:
    """One request's part of a shared denoising step. `latents` begins with the image axis."""

    params: GenerationParams
    conditioning: Conditioning
    latents: Tensor
    timestep: float


@runtime_checkable
class Pipeline(Protocol):
    """One loaded model. Parameters given to it were resolved by `spec.resolve` before.

    `max_decode_pixels` bounds how many pixels one `decode` call is given; a single request larger
    than that is decoded alone.
    """

    @property
    def spec(self) -> ModelSpec: ...
    @property
    def sampler(self) -> Sampler: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def max_decode_pixels(self) -> int: ...

    def describe(self) -> Mapping[str, str]:
        """What was chosen at load time and people may want to know: dtype, attention kernel…"""
        ...

    def workload(self, params: GenerationParams) -> Workload: ...

    def cost_prior(self) -> CostFit:
        """A first guess from the architecture and the device, used until steps were measured."""
        ...

    def step_bytes(self, load: Workload) -> int:
        """Predicted peak memory of this request's part of a denoising step."""
        ...

    def conditioning_key(self, params: GenerationParams) -> Hashable:
        """Equal keys have equal conditioning; what the prompt cache goes by."""
        ...

    def encode(self, params: Sequence[GenerationParams]) -> list[Conditioning]: ...

    def init_latents(self, params: GenerationParams) -> Tensor:
        """Pure noise for a request's seeds, images along the first axis."""
        ...

    def schedule(self, params: GenerationParams) -> NoiseSchedule: ...

    def denoise(self, batch: Sequence[DenoiseInput]) -> list[Tensor]:
        """The model's prediction for each request, shaped like its latents.

        Requests may differ in everything. Each prediction depends on its own request alone.
        """
        ...

    def decode(self, latents: Sequence[Tensor], params: Sequence[GenerationParams]) -> list[list[Frames]]:
        """Images for finished latents of equal size; `num_images` lists of frames a request."""
        ...

    def preview(self, latents: Tensor, params: GenerationParams) -> Image:
        """A small, cheap RGB image of unfinished latents (the request's first image)."""
        ...
