"""DDIM: Song et al. 2020 (arXiv:2010.02502, equations 12 and 16).

Reference implementation: diffusers' `DDIMScheduler`.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field, with_config
from torch import Tensor

from diffuserve.domain.models.config import SCHEMA
from diffuserve.samplers.base import Latents, Memory, NoiseSchedule, ScheduleStep
from diffuserve.samplers.diffusion import DiffusionNoise, Spacing, floats


@with_config(SCHEMA)
@dataclass(frozen=True)
class VariancePreserving(DiffusionNoise):
    """Base of the samplers that go by ᾱ of whole timesteps: x = √ᾱ·x₀ + √(1-ᾱ)·ε."""

    set_alpha_to_one: bool = True

    def draws_noise(self, at: ScheduleStep) -> bool:
        return False

    def predict_x0(self, latents: Latents, prediction: Latents, at: ScheduleStep) -> Latents:
        alpha_bar = self.alpha_bar(at.timestep)
        return self.x0(latents, prediction, alpha_bar**0.5, (1 - alpha_bar) ** 0.5)

    def add_noise(self, clean: Latents, noise: Latents, at: ScheduleStep) -> Latents:
        alpha_bar = self.alpha_bar(at.timestep).to(clean.dtype)
        return alpha_bar**0.5 * clean + (1 - alpha_bar) ** 0.5 * noise

    def alpha_bar(self, timestep: float) -> Tensor:
        """Return ᾱ of a timestep; one below 0 stands for the finished image."""
        if timestep < 0:
            return torch.tensor(1.0) if self.set_alpha_to_one else self.alphas_cumprod[0]
        return self.alphas_cumprod[int(timestep)]

    def epsilon(self, latents: Tensor, prediction: Tensor, alpha_bar: Tensor) -> Tensor:
        """Return the noise in x = √ᾱ·x₀ + √(1-ᾱ)·ε that a prediction implies."""
        if self.prediction_type == "epsilon":
            return prediction
        if self.prediction_type == "v_prediction":
            return alpha_bar**0.5 * prediction + (1 - alpha_bar) ** 0.5 * latents
        return (latents - alpha_bar**0.5 * prediction) / (1 - alpha_bar) ** 0.5

    def schedule_at(self, timesteps: list[int], last: int) -> NoiseSchedule:
        """Return the schedule of whole timesteps; `last` is the timestep after the last step."""
        alpha_bars = torch.stack([self.alpha_bar(float(timestep)) for timestep in (*timesteps, last)])
        return NoiseSchedule(floats(((1 - alpha_bars) / alpha_bars) ** 0.5), tuple(map(float, timesteps)))


@with_config(SCHEMA)
@dataclass(frozen=True)
class Ddim(VariancePreserving):
    """Steps between timesteps that stand T/n apart, with `eta` times the fresh noise of DDPM's."""

    timestep_spacing: Spacing = "leading"
    clip_sample: bool = True
    clip_sample_range: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    eta: float = 0.0

    unsupported: ClassVar[tuple[str, ...]] = ("thresholding",)
    request_options: ClassVar[tuple[str, ...]] = ("eta",)

    def schedule(self, num_inference_steps: int, mu: float | None = None) -> NoiseSchedule:
        """Return the levels of spaced whole timesteps."""
        timesteps = self.spaced_timesteps(num_inference_steps).round().astype(int).tolist()
        return self.schedule_at(timesteps, timesteps[-1] - self.num_train_timesteps // num_inference_steps)

    def draws_noise(self, at: ScheduleStep) -> bool:
        return self.eta > 0

    def step(
        self, latents: Latents, prediction: Latents, at: ScheduleStep, memory: Memory, noise: Latents | None
    ) -> tuple[Latents, Memory]:
        """Return √ᾱ'·x₀ + √(1-ᾱ'-σ²)·ε + σ·z, with fresh noise z."""
        distance = self.num_train_timesteps // len(at.schedule.timesteps)
        alpha_bar, next_alpha_bar = self.alpha_bar(at.timestep), self.alpha_bar(at.timestep - distance)
        x0 = self.predict_x0(latents, prediction, at)
        if self.clip_sample:
            x0 = x0.clamp(-self.clip_sample_range, self.clip_sample_range)
        sigma = self._sigma(alpha_bar, next_alpha_bar)
        # Rounding may leave less than nothing where σ² is all of it.
        rest = (1 - next_alpha_bar - sigma**2).clamp(min=0)
        moved = next_alpha_bar**0.5 * x0 + rest**0.5 * self.epsilon(latents, prediction, alpha_bar)
        return (moved if noise is None else moved + sigma * noise.to(moved.dtype)), ()

    def _sigma(self, alpha_bar: Tensor, next_alpha_bar: Tensor) -> Tensor:
        """Return the deviation of the fresh noise."""
        if not self.eta:
            return torch.zeros(())
        variance = (1 - next_alpha_bar) / (1 - alpha_bar) * (1 - alpha_bar / next_alpha_bar)
        return self.eta * variance**0.5
