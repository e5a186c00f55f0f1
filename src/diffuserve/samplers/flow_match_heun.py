"""Heun's method along a rectified flow: each step is taken twice, the second time with the mean slope.

Reference implementation: diffusers' `FlowMatchHeunDiscreteScheduler` without churn. n steps call the model
2n - 1 times; the last is a plain Euler step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, with_config

from diffuserve.domain.models.config import SCHEMA, parse_config
from diffuserve.samplers.base import Latents, Memory, NoiseSchedule, ScheduleStep
from diffuserve.samplers.flow_match_euler import FlowMatchEulerBetweenEnds, mix


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
        of_euler = FlowMatchEulerBetweenEnds(self.num_train_timesteps, self.shift).schedule(
            num_inference_steps
        )
        return NoiseSchedule((*_twice(of_euler.sigmas[:-1]), 0.0), _twice(of_euler.timesteps))

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


def _twice(levels: Sequence[float]) -> tuple[float, ...]:
    """Return each value twice, but the first: the first step begins with its only evaluation there."""
    return (*levels[:1], *(level for level in levels[1:] for _ in range(2)))
