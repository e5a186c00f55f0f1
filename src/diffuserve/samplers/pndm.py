"""PNDM's linear multistep half: Liu et al. 2022 (arXiv:2202.09778, equation 12).

Reference implementation: diffusers' `PNDMScheduler` with `skip_prk_steps`, as Stable Diffusion uses it. Its
second evaluation repeats the second timestep: n steps call the model n + 1 times.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import with_config
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA
from diffuserve.samplers.base import Latents, Memory, NoiseSchedule, ScheduleStep
from diffuserve.samplers.ddim import VariancePreserving
from diffuserve.samplers.diffusion import PredictionType, Spacing


@with_config(SCHEMA)
@dataclass(frozen=True)
class Pndm(VariancePreserving):
    """Memory: the last three predictions; between the first two evaluations also the first latents."""

    timestep_spacing: Spacing = "leading"
    set_alpha_to_one: bool = False

    prediction_types: ClassVar[tuple[PredictionType, ...]] = ("epsilon", "v_prediction")

    @classmethod
    def adapt(cls, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse also Runge-Kutta steps; the reference has no `rescale_betas_zero_snr`."""
        if not config.get("skip_prk_steps"):
            raise InvalidModel(
                "scheduler_config.json: skip_prk_steps=false is not supported; set it to true, or use "
                "another sampler"
            )
        return super().adapt({**config, "rescale_betas_zero_snr": False})

    def schedule(self, num_inference_steps: int, mu: float | None = None) -> NoiseSchedule:
        """Return the levels of spaced whole timesteps, the second one twice."""
        timesteps = self.spaced_timesteps(num_inference_steps).round().astype(int).tolist()
        evaluated = timesteps[:2] + timesteps[1:]
        return self.schedule_at(evaluated, evaluated[-1] - self._distance(len(evaluated)))

    def step(
        self, latents: Latents, prediction: Latents, at: ScheduleStep, memory: Memory, noise: Latents | None
    ) -> tuple[Latents, Memory]:
        """Return the latents of the next timestep, by a combination of up to four predictions."""
        distance = self._distance(len(at.schedule.timesteps))
        if at.taken == 1:  # the first step once more, by the mean of its slopes at both ends
            first, start = memory
            return self._move(start, at.timestep + distance, at.timestep, (prediction + first) / 2), (first,)
        slopes = (*memory[-3:], prediction)
        moved = self._move(latents, at.timestep, at.timestep - distance, _combine(slopes))
        return moved, (prediction, latents) if at.taken == 0 else slopes

    def _distance(self, num_evaluations: int) -> int:
        """Return the timesteps that a step covers."""
        return self.num_train_timesteps // max(num_evaluations - 1, 1)

    def _move(self, latents: Tensor, timestep: float, next_timestep: float, slope: Tensor) -> Tensor:
        """Return equation 11: the step from one timestep to another along a slope."""
        alpha_bar, next_alpha_bar = self.alpha_bar(timestep), self.alpha_bar(next_timestep)
        epsilon = self.epsilon(latents, slope, alpha_bar)
        beta_bar, next_beta_bar = 1 - alpha_bar, 1 - next_alpha_bar
        divisor = alpha_bar * next_beta_bar**0.5 + (alpha_bar * beta_bar * next_alpha_bar) ** 0.5
        scaled = (next_alpha_bar / alpha_bar) ** 0.5 * latents
        return scaled - (next_alpha_bar - alpha_bar) * epsilon / divisor


def _combine(slopes: tuple[Tensor, ...]) -> Tensor:
    """Return the Adams-Bashforth combination of one to four slopes, oldest first."""
    if len(slopes) == 1:
        return slopes[0]
    if len(slopes) == 2:
        return (3 * slopes[1] - slopes[0]) / 2
    if len(slopes) == 3:
        return (23 * slopes[2] - 16 * slopes[1] + 5 * slopes[0]) / 12
    return (1 / 24) * (55 * slopes[3] - 59 * slopes[2] + 37 * slopes[1] - 9 * slopes[0])
