"""Base of the exponential integrators DPM-Solver++ and UniPC: spaced levels and half log-SNRs.

Both solve in λ = log(α/σ) (Lu et al. 2022, arXiv:2206.00927), where x = αx₀ + σε. Levels of a schedule are
σ/α, except with `use_flow_sigmas`, where α = 1 - σ.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field, with_config
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA
from diffuserve.samplers.base import Latents, NoiseSchedule, ScheduleStep
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


class Level(NamedTuple):
    """A noise level: x = αx₀ + σε, and λ = log(α/σ); float32 scalars."""

    alpha: Tensor
    sigma: Tensor
    lambda_: Tensor


@with_config(SCHEMA)
@dataclass(frozen=True)
class ExponentialSolver(DiffusionNoise, ABC):
    """Schedules and conversions; `solver_order` is the highest order of a step."""

    solver_order: Annotated[int, Field(ge=1, le=3)] = 2
    lower_order_final: bool = True
    use_karras_sigmas: bool = False
    use_exponential_sigmas: bool = False
    use_flow_sigmas: bool = False
    flow_shift: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    final_sigmas_type: FinalSigma = "zero"
    sigma_min: Sigma | None = None
    sigma_max: Sigma | None = None

    prediction_types: ClassVar[tuple[PredictionType, ...]] = (
        "epsilon",
        "sample",
        "v_prediction",
        "flow_prediction",
    )
    unsupported: ClassVar[tuple[str, ...]] = (
        "thresholding",
        "use_beta_sigmas",
        "use_lu_lambdas",
        "use_dynamic_shifting",
        "shift_terminal",
        "variance_type",
        "solver_p",
    )

    @classmethod
    def adapt(cls, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse also two spacings of levels at once."""
        spacings = ("use_karras_sigmas", "use_exponential_sigmas", "use_flow_sigmas")
        if len(chosen := [name for name in spacings if config.get(name)]) > 1:
            raise InvalidModel(f"scheduler_config.json: {' and '.join(chosen)} exclude each other")
        return super().adapt(config)

    def schedule(self, num_inference_steps: int, mu: float | None = None) -> NoiseSchedule:
        """Return levels spaced as configured; timesteps are whole, and may repeat."""
        timesteps, sigmas = self._spaced(num_inference_steps)
        levels = np.concatenate([sigmas, [self._last_sigma(sigmas)]]).astype(np.float32)
        return NoiseSchedule(floats(levels), floats(timesteps.astype(np.int64)))

    def predict_x0(self, latents: Latents, prediction: Latents, at: ScheduleStep) -> Latents:
        level = self.level(at.sigma)
        if self.prediction_type == "flow_prediction":
            return latents - torch.tensor(at.sigma) * prediction
        return self.x0(latents, prediction, level.alpha, level.sigma)

    def add_noise(self, clean: Latents, noise: Latents, at: ScheduleStep) -> Latents:
        sigma = torch.tensor(at.sigma).to(clean.dtype)
        alpha, sigma = self._alpha_sigma(sigma)
        return alpha * clean + sigma * noise

    def level(self, sigma: float) -> Level:
        alpha, scaled = self._alpha_sigma(torch.tensor(sigma))
        return Level(alpha, scaled, torch.log(alpha) - torch.log(scaled))

    def _alpha_sigma(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        if self.use_flow_sigmas:
            return 1 - sigma, sigma
        alpha = 1 / (sigma**2 + 1) ** 0.5
        return alpha, sigma * alpha

    def _spaced(self, count: int) -> tuple[Doubles, Doubles]:
        """Return timesteps and levels. Karras's span the range of training, or what the config says."""
        ends = (self.sigma_max or float(self.train_sigmas[-1]), self.sigma_min or float(self.train_sigmas[0]))
        if self.use_karras_sigmas:
            sigmas = karras_sigmas(*ends, count)
            return self._rounded(self.timesteps_of(sigmas)), sigmas
        if self.use_exponential_sigmas:
            sigmas = exponential_sigmas(*ends, count)
            return self.timesteps_of(sigmas), sigmas
        if self.use_flow_sigmas:
            sigmas = self._flow_sigmas(count)
            return sigmas * self.num_train_timesteps, sigmas
        timesteps = self.spaced_timesteps(count, drop_last=self.timestep_spacing != "trailing").round()
        return timesteps, self.sigmas_at(timesteps)

    def _rounded(self, timesteps: Doubles) -> Doubles:
        """Return the timesteps of Karras's levels."""
        return timesteps.round()

    @abstractmethod
    def _flow_sigmas(self, count: int) -> Doubles:
        """Return the levels of a rectified flow."""

    def _last_sigma(self, sigmas: Doubles) -> float:
        """Return the level after the last step; `sigmas` are those of the steps."""
        return 0.0 if self.final_sigmas_type == "zero" else float(self.train_sigmas[0])

    def _shifted(self, sigmas: Doubles) -> Doubles:
        return self.flow_shift * sigmas / (1 + (self.flow_shift - 1) * sigmas)
