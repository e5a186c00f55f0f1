"""Euler steps along a rectified flow (Liu et al. 2022, arXiv:2209.03003).

Reference implementation: diffusers' `FlowMatchEulerDiscreteScheduler`; the arithmetic here keeps
its order and its float32 roundings, so that schedules are equal to the last bit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Float32
from pydantic import Field, with_config
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, parse_config
from diffuserve.samplers.base import Latents, Memory, NoiseSchedule, ScheduleStep

# Options of the reference that are not implemented; a folder that sets one is refused.
_UNSUPPORTED = (
    "use_karras_sigmas",
    "use_exponential_sigmas",
    "use_beta_sigmas",
    "use_flow_sigmas",
    "stochastic_sampling",
    "invert_sigmas",
    "shift_terminal",
)


@with_config(SCHEMA)
@dataclass(frozen=True)
class FlowMatchEuler:
    """`shift` bends all schedules equally; dynamic shifting bends each by a μ that the family computes.

    The shift is that of Esser et al. 2024 (arXiv:2403.03206, section 5.3.2): more noise for larger
    images. Field names are those of `scheduler_config.json`.
    """

    num_train_timesteps: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    shift: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    use_dynamic_shifting: bool = False
    time_shift_type: Literal["exponential", "linear"] = "exponential"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "FlowMatchEuler":
        """Build a sampler from `scheduler_config.json`.

        Raise `InvalidModel` for unsupported options and for values out of bounds.
        """
        for option in _UNSUPPORTED:
            if config.get(option):
                raise InvalidModel(f"scheduler_config.json: {option}={config[option]!r} is not supported")
        return parse_config(cls, config, "scheduler_config.json")

    def schedule(self, num_inference_steps: int, mu: float | None = None) -> NoiseSchedule:
        """Return noise levels from 1 down to 0, shifted as configured; timesteps are 1000·σ."""
        sigmas = np.linspace(1.0, 1 / num_inference_steps, num_inference_steps).astype(np.float32)
        if self.use_dynamic_shifting:
            assert mu is not None
            scale = math.exp(mu) if self.time_shift_type == "exponential" else mu
            shifted = scale / (scale + (1 / sigmas - 1))
        else:
            shifted = self.shift * sigmas / (1 + (self.shift - 1) * sigmas)
        sigmas = shifted.astype(np.float32)
        timesteps = sigmas * np.float32(self.num_train_timesteps)
        return NoiseSchedule((*map(float, sigmas), 0.0), tuple(map(float, timesteps)))

    def draws_noise(self, at: ScheduleStep) -> bool:
        return False

    def step(
        self, latents: Latents, prediction: Latents, at: ScheduleStep, memory: Memory, noise: Latents | None
    ) -> tuple[Latents, Memory]:
        """Return x + (σ' - σ)·v, computed in float32, in the prediction's dtype."""
        return _move(latents, prediction, at.sigma, at.next_sigma), ()

    def predict_x0(self, latents: Latents, prediction: Latents, at: ScheduleStep) -> Latents:
        """Return x₀ = x - σ·v: a step down to σ = 0."""
        return _move(latents, prediction, at.sigma, 0.0)

    def add_noise(self, clean: Latents, noise: Latents, at: ScheduleStep) -> Latents:
        """Return σ·ε + (1 - σ)·x₀, with σ in the latents' dtype."""
        return mix(clean, noise, at.sigma)


@with_config(SCHEMA)
@dataclass(frozen=True)
class FlowMatchEulerBetweenEnds(FlowMatchEuler):
    """The same steps over the levels that the reference uses if its pipeline passes none.

    They are spaced evenly between the ends of training's levels, which are shifted already, and then
    shifted again: a schedule with a shift above 1 ends with one long step.
    """

    def schedule(self, num_inference_steps: int, mu: float | None = None) -> NoiseSchedule:
        sigmas = levels_between_ends(self.shift, self.num_train_timesteps, num_inference_steps)
        timesteps = sigmas * self.num_train_timesteps
        return NoiseSchedule((*map(float, sigmas), 0.0), tuple(map(float, timesteps)))


def levels_between_ends(shift: float, num_train_timesteps: int, count: int) -> Float32[Tensor, "count"]:
    """Return falling levels between the ends of a shifted schedule, shifted once more."""

    def shifted(sigmas: Any) -> Any:
        return shift * sigmas / (1 + (shift - 1) * sigmas)

    high, low = shifted(torch.tensor([1.0, 1 / num_train_timesteps])).tolist()
    timesteps = np.linspace(high * num_train_timesteps, low * num_train_timesteps, count)
    return torch.from_numpy(shifted(timesteps / num_train_timesteps)).float()


def mix(clean: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """Return the point of a rectified flow between clean latents and noise, with σ in their dtype."""
    level = torch.tensor(sigma).to(clean.dtype)
    return level * noise + (1.0 - level) * clean


def _move(latents: Tensor, prediction: Tensor, sigma: float, next_sigma: float) -> Tensor:
    """Return x + (σ' - σ)·v.

    As in the reference, σ' - σ and its product with v are rounded to the prediction's dtype before
    they are added; `torch.add(…, alpha=…)` would fuse them.
    """
    delta = torch.tensor(np.float32(next_sigma) - np.float32(sigma)).to(prediction.dtype)
    return (latents.float() + delta * prediction).to(prediction.dtype)
