"""Euler steps along a rectified flow (Liu et al. 2022, arXiv:2209.03003).

Reference implementation: diffusers' `FlowMatchEulerDiscreteScheduler`; the arithmetic here keeps
its order and its float32 roundings, so that schedules are equal to the last bit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, with_config
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, parse_config
from diffuserve.samplers.base import Latents, Memory, NoiseSchedule, ScheduleStep

Levels = Float[np.ndarray, "steps"]
_Sigmas = TypeVar("_Sigmas", Float[np.ndarray, "steps"], Float[Tensor, "steps"])

# Options of the reference that are not implemented; a folder that sets one is refused.
_UNSUPPORTED = (
    "use_karras_sigmas",
    "use_exponential_sigmas",
    "use_beta_sigmas",
    "use_flow_sigmas",
    "stochastic_sampling",
    "invert_sigmas",
)


@with_config(SCHEMA)
@dataclass(frozen=True)
class FlowMatchEuler:
    """`shift` bends all schedules equally; dynamic shifting bends each by a μ that the family computes.

    The shift is that of Esser et al. 2024 (arXiv:2403.03206, section 5.3.2): more noise for larger
    images. `shift_terminal` is the last level at which the model is called; `None` or 0 leaves it as it is.
    Field names are those of `scheduler_config.json`.
    """

    num_train_timesteps: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    shift: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    use_dynamic_shifting: bool = False
    time_shift_type: Literal["exponential", "linear"] = "exponential"
    shift_terminal: Annotated[float, Field(ge=0, lt=1)] | None = None

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
        """Return noise levels from 1 down to 0, shifted as configured; timesteps are 1000·σ.

        Any finite μ will do whose e^μ is finite in float32, and any above 0 for linear shifts.
        """
        return self._bent(
            np.linspace(1.0, 1 / num_inference_steps, num_inference_steps, dtype=np.float32), mu
        )

    def _bent(self, sigmas: Levels, mu: float | None) -> NoiseSchedule:
        """Return the schedule of evenly spaced levels: shifted, then stretched, each in their own dtype."""
        levels = self._stretched(self._shifted(sigmas, mu)).astype(np.float32)
        timesteps = levels * np.float32(self.num_train_timesteps)
        return NoiseSchedule((*map(float, levels), 0.0), tuple(map(float, timesteps)))

    def _shifted(self, sigmas: Levels, mu: float | None) -> Levels:
        if not self.use_dynamic_shifting:
            return shifted(sigmas, self.shift)
        assert mu is not None
        scale = math.exp(mu) if self.time_shift_type == "exponential" else mu
        return scale / (scale + (1 / sigmas - 1))

    def _stretched(self, sigmas: Levels) -> Levels:
        """Return levels whose distances from 1 are stretched evenly, so that the last is `shift_terminal`.

        Levels that are all the same, such as that of a single step, stay as they are: the reference would
        stretch a rounding error there, or divide by zero.
        """
        if not self.shift_terminal or sigmas[-1] >= sigmas[0]:
            return sigmas
        done = 1 - sigmas
        stretched: Levels = 1 - done / (done[-1] / (1 - self.shift_terminal))
        return stretched

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
    """The same steps over the levels that the reference uses if its pipeline passes none, as SD3's and Wan's.

    They are spaced evenly between the ends of training's levels, which a fixed shift has bent already, and
    then shifted: a schedule with a shift above 1 ends with one long step.
    """

    def schedule(self, num_inference_steps: int, mu: float | None = None) -> NoiseSchedule:
        total = self.num_train_timesteps
        ends = torch.tensor([1.0, 1 / total])
        high, low = (ends if self.use_dynamic_shifting else shifted(ends, self.shift)).tolist()
        return self._bent(np.linspace(high * total, low * total, num_inference_steps) / total, mu)


def shifted(sigmas: _Sigmas, shift: float) -> _Sigmas:
    """Return levels bent by a fixed shift s: s·σ / (1 + (s - 1)·σ)."""
    return shift * sigmas / (1 + (shift - 1) * sigmas)


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
