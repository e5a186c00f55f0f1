"""Euler's method and its ancestral twin for diffusion models, after Karras et al. 2022 (arXiv:2206.00364).

Latents are scaled so that x = x₀ + σε; the model sees them divided by √(σ² + 1). Reference implementations:
diffusers' `EulerDiscreteScheduler` and `EulerAncestralDiscreteScheduler`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import with_config
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA
from diffuserve.samplers.base import Latents, Memory, NoiseSchedule, ScheduleStep
from diffuserve.samplers.diffusion import (
    DiffusionNoise,
    Doubles,
    FinalSigma,
    PredictionType,
    Sigma,
    exponential_sigmas,
    floats,
    karras_sigmas,
)


@with_config(SCHEMA)
@dataclass(frozen=True)
class _SigmaScaled(DiffusionNoise):
    """Base of both: latents that grow with σ."""

    def predict_x0(self, latents: Latents, prediction: Latents, at: ScheduleStep) -> Latents:
        return self._x0(latents.float(), prediction, torch.tensor(at.sigma)).to(prediction.dtype)

    def add_noise(self, clean: Latents, noise: Latents, at: ScheduleStep) -> Latents:
        return clean + noise * torch.tensor(at.sigma).to(clean.dtype)

    def _move(self, latents: Latents, prediction: Latents, sigma: Tensor, target: Tensor) -> Latents:
        """Return x + (σ' - σ)·(x - x₀)/σ, in float32, with `target` for σ'."""
        latents = latents.float()
        derivative = (latents - self._x0(latents, prediction, sigma)) / sigma
        return latents + derivative * (target - sigma)

    def _x0(self, latents: Tensor, prediction: Tensor, sigma: Tensor) -> Tensor:
        if self.prediction_type == "epsilon":
            return latents - sigma * prediction
        if self.prediction_type == "v_prediction":
            return prediction * (-sigma / (sigma**2 + 1) ** 0.5) + latents / (sigma**2 + 1)
        return prediction

    def _make_schedule(self, timesteps: NDArray[np.float32], sigmas: Doubles, last: float) -> NoiseSchedule:
        levels = torch.from_numpy(np.concatenate([sigmas, [last]]).astype(np.float32))
        largest = levels.max()
        if self.timestep_spacing == "leading":  # the first level is below the noise of training
            largest = (largest**2 + 1) ** 0.5
        input_scales = 1 / (levels[:-1] ** 2 + 1) ** 0.5
        return NoiseSchedule(floats(levels), floats(timesteps), float(largest), floats(input_scales))


@with_config(SCHEMA)
@dataclass(frozen=True)
class Euler(_SigmaScaled):
    """Deterministic steps along the probability flow, with evenly, Karras- or exponentially spaced levels."""

    use_karras_sigmas: bool = False
    use_exponential_sigmas: bool = False
    sigma_min: Sigma | None = None
    sigma_max: Sigma | None = None
    final_sigmas_type: FinalSigma = "zero"

    unsupported: ClassVar[tuple[str, ...]] = ("use_beta_sigmas",)

    @classmethod
    def adapt(cls, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse also the reference's options for video models, and two spacings at once."""
        defaults = {"interpolation_type": "linear", "timestep_type": "discrete"}
        for option, default in defaults.items():
            if config.get(option, default) != default:
                raise InvalidModel(f"scheduler_config.json: {option}={config[option]!r} is not supported")
        if config.get("use_karras_sigmas") and config.get("use_exponential_sigmas"):
            raise InvalidModel(
                "scheduler_config.json: use_karras_sigmas and use_exponential_sigmas exclude each other"
            )
        return super().adapt(config)

    def schedule(self, num_inference_steps: int, mu: float | None = None) -> NoiseSchedule:
        """Return the levels of spaced timesteps, or spaced levels and the timesteps that had them."""
        timesteps = self.spaced_timesteps(num_inference_steps).astype(np.float32)
        sigmas = self.sigmas_at(timesteps)
        if self.use_karras_sigmas or self.use_exponential_sigmas:
            space = karras_sigmas if self.use_karras_sigmas else exponential_sigmas
            ends = (self.sigma_max or float(sigmas[0]), self.sigma_min or float(sigmas[-1]))
            sigmas = space(*ends, num_inference_steps)
            timesteps = self.timesteps_of(sigmas).astype(np.float32)
        last = 0.0 if self.final_sigmas_type == "zero" else float(self.train_sigmas[0])
        return self._make_schedule(timesteps, sigmas, last)

    def draws_noise(self, at: ScheduleStep) -> bool:
        return False

    def step(
        self, latents: Latents, prediction: Latents, at: ScheduleStep, memory: Memory, noise: Latents | None
    ) -> tuple[Latents, Memory]:
        """Return x + (σ' - σ)·(x - x₀)/σ, computed in float32."""
        sigma, next_sigma = torch.tensor([at.sigma, at.next_sigma])
        return self._move(latents, prediction, sigma, next_sigma).to(prediction.dtype), ()


@with_config(SCHEMA)
@dataclass(frozen=True)
class EulerAncestral(_SigmaScaled):
    """Steps to a level below the next one, and adds fresh noise up to it."""

    prediction_types: ClassVar[tuple[PredictionType, ...]] = ("epsilon", "v_prediction")

    def schedule(self, num_inference_steps: int, mu: float | None = None) -> NoiseSchedule:
        """Return the levels of spaced timesteps."""
        timesteps = self.spaced_timesteps(num_inference_steps).astype(np.float32)
        return self._make_schedule(timesteps, self.sigmas_at(timesteps), 0.0)

    def draws_noise(self, at: ScheduleStep) -> bool:
        """Return whether noise remains after the step.

        The reference draws after the last step too and multiplies it by zero; no other draw follows.
        """
        return at.next_sigma > 0

    def step(
        self, latents: Latents, prediction: Latents, at: ScheduleStep, memory: Memory, noise: Latents | None
    ) -> tuple[Latents, Memory]:
        """Return a step down to σ_down and noise of σ_up, where σ_down² + σ_up² = σ'²."""
        sigma, next_sigma = torch.tensor([at.sigma, at.next_sigma])
        sigma_up = (next_sigma**2 * (sigma**2 - next_sigma**2) / sigma**2) ** 0.5
        sigma_down = (next_sigma**2 - sigma_up**2) ** 0.5
        moved = self._move(latents, prediction, sigma, sigma_down)
        if noise is not None:
            moved = moved + noise.to(prediction.dtype) * sigma_up
        return moved.to(prediction.dtype), ()
