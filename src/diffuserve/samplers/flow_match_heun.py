"""Heun's method along a rectified flow: each step is taken twice, the second time with the mean slope.

Reference implementation: diffusers' `FlowMatchHeunDiscreteScheduler` without churn. n steps call the model
2n - 1 times; the last is a plain Euler step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, with_config

from diffuserve.domain.models.config import SCHEMA, parse_config
from diffuserve.samplers.base import Latents, Memory, NoiseSchedule, ScheduleStep
from diffuserve.samplers.diffusion import floats
from diffuserve.samplers.flow_match_euler import levels_between_ends, mix


@with_config(SCHEMA)
@dataclass(frozen=True)
class FlowMatchHeun:
    """Memory between the two halves of a step: the slope and the latents at its beginning."""

    num_train_timesteps: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    shift: Annotated[float, Field(gt=0, le=1_000)] = 1.0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "FlowMatchHeun":
        """Build a sampler from `scheduler_config.json`; raise `InvalidModel` for values out of bounds."""
        return parse_config(cls, config, "scheduler_config.json")

    def schedule(self, num_inference_steps: int, mu: float | None = None) -> NoiseSchedule:
        """Return the levels of every evaluation. As in the reference, the shift is applied twice."""
        total = self.num_train_timesteps
        sigmas = levels_between_ends(self.shift, total, num_inference_steps)
        levels = torch.cat([sigmas[:1], sigmas[1:].repeat_interleave(2)])
        return NoiseSchedule((*floats(levels), 0.0), floats(levels * total))

    def draws_noise(self, at: ScheduleStep) -> bool:
        return False

    def step(
        self, latents: Latents, prediction: Latents, at: ScheduleStep, memory: Memory, noise: Latents | None
    ) -> tuple[Latents, Memory]:
        """Return an Euler step, and after it the same step by the mean of both slopes."""
        latents, slope = latents.float(), prediction
        if not memory:
            moved = latents + slope * (torch.tensor(at.next_sigma) - torch.tensor(at.sigma))
            return moved.to(prediction.dtype), () if at.is_last else (slope, latents)
        first_slope, start = memory
        length = torch.tensor(at.sigma) - torch.tensor(at.schedule.sigmas[at.index - 1])
        return (start + 0.5 * (first_slope + slope) * length).to(prediction.dtype), ()

    def predict_x0(self, latents: Latents, prediction: Latents, at: ScheduleStep) -> Latents:
        return (latents.float() - prediction * torch.tensor(at.sigma)).to(prediction.dtype)

    def add_noise(self, clean: Latents, noise: Latents, at: ScheduleStep) -> Latents:
        return mix(clean, noise, at.sigma)
