"""The contract of samplers: noise schedules and update rules, as pure maths.

A sampler holds only a checkpoint's constants, never a request's progress, so one sampler serves
any number of requests that stand at different steps.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True)
class NoiseSchedule:
    """The noise levels of a request.

    `sigmas` has one entry more than there are steps and ends at 0, without noise; `timesteps[i]` is the
    model's input at step `i`. Plain floats, exact in float32.
    """

    sigmas: tuple[float, ...]
    timesteps: tuple[float, ...]

    @property
    def num_steps(self) -> int:
        return len(self.timesteps)


@runtime_checkable
class Sampler(Protocol):
    """Schedules and updates of one checkpoint; stateless, so it serves any number of requests."""

    def schedule(self, num_inference_steps: int, image_tokens: int) -> NoiseSchedule:
        """Return the noise schedule for an image of `image_tokens` tokens, without its prompt."""
        ...

    def step(self, latents: Tensor, prediction: Tensor, sigma: float, next_sigma: float) -> Tensor:
        """Return the latents moved from noise level `sigma` to `next_sigma`; all of one shape."""
        ...

    def predict_x0(self, latents: Tensor, prediction: Tensor, sigma: float) -> Tensor:
        """Return the finished latents that the prediction at noise level `sigma` implies."""
        ...
