"""What every sampler offers: noise schedules and update rules, as pure maths.

A sampler holds only a checkpoint's constants, never a request's progress, so one sampler serves
any number of requests that stand at different steps.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True)
class NoiseSchedule:
    """The noise levels of one request.

    `sigmas` has one entry more than there are steps and ends at the clean level;
    `timesteps[i]` is what the model is told at step `i`. Plain floats, exact in float32.
    """

    sigmas: tuple[float, ...]
    timesteps: tuple[float, ...]

    @property
    def num_steps(self) -> int:
        return len(self.timesteps)


@runtime_checkable
class Sampler(Protocol):
    def schedule(self, num_inference_steps: int, image_tokens: int) -> NoiseSchedule:
        """The noise schedule for an image of `image_tokens` tokens."""
        ...

    def step(self, latents: Tensor, prediction: Tensor, sigma: float, next_sigma: float) -> Tensor:
        """Move latents from noise level `sigma` to `next_sigma`."""
        ...

    def clean(self, latents: Tensor, prediction: Tensor, sigma: float) -> Tensor:
        """The finished latents that the model expects, seen from noise level `sigma`."""
        ...
