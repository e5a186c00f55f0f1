"""Latent consistency models: Luo et al. 2023 (arXiv:2310.04378).

Each step jumps to the finished image and adds fresh noise for the next level. Reference implementation:
diffusers' `LCMScheduler`.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.config import SCHEMA
from diffuserve.samplers.base import Latents, Memory, NoiseSchedule, ScheduleStep
from diffuserve.samplers.ddim import VariancePreserving

_SIGMA_DATA = 0.5


@with_config(SCHEMA)
@dataclass(frozen=True)
class Lcm(VariancePreserving):
    """Steps between timesteps that the model was distilled on, `original_inference_steps` in number."""

    beta_start: Annotated[float, Field(gt=0, lt=1)] = 0.00085
    beta_end: Annotated[float, Field(gt=0, lt=1)] = 0.012
    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "scaled_linear"
    original_inference_steps: Annotated[int, Field(ge=1, le=1000)] = 50
    timestep_scaling: Annotated[float, Field(gt=0, le=1e6)] = 10.0
    clip_sample: bool = False
    clip_sample_range: Annotated[float, Field(gt=0, le=1e6)] = 1.0

    unsupported: ClassVar[tuple[str, ...]] = ("thresholding",)

    def schedule(self, num_inference_steps: int, mu: float | None = None) -> NoiseSchedule:
        """Return some of the distilled timesteps. Raise `InvalidParams` if there are not enough."""
        distilled = self.original_inference_steps
        if num_inference_steps > distilled:
            raise InvalidParams(
                "num_inference_steps", num_inference_steps, f"this sampler takes at most {distilled} steps"
            )
        spacing = self.num_train_timesteps // distilled
        indices = np.floor(np.linspace(0, distilled, num=num_inference_steps, endpoint=False)).astype(int)
        timesteps = (np.arange(distilled, 0, -1) * spacing - 1)[indices].tolist()
        return self.schedule_at(timesteps, -1)

    def draws_noise(self, at: ScheduleStep) -> bool:
        return not at.is_last

    def step(
        self, latents: Latents, prediction: Latents, at: ScheduleStep, memory: Memory, noise: Latents | None
    ) -> tuple[Latents, Memory]:
        """Return the consistency function's image, with the next level's noise unless it is the last."""
        scaled = at.timestep * self.timestep_scaling
        skip = _SIGMA_DATA**2 / (scaled**2 + _SIGMA_DATA**2)
        out = scaled / (scaled**2 + _SIGMA_DATA**2) ** 0.5
        x0 = self.predict_x0(latents, prediction, at)
        if self.clip_sample:
            x0 = x0.clamp(-self.clip_sample_range, self.clip_sample_range)
        denoised = out * x0 + skip * latents
        if noise is None:
            return denoised, ()
        alpha_bar = self.alpha_bar(at.schedule.timesteps[at.index + 1])
        return alpha_bar.sqrt() * denoised + (1 - alpha_bar).sqrt() * noise.to(denoised.dtype), ()
