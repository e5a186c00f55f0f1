"""Euler steps along a rectified flow (Liu et al. 2022, arXiv:2209.03003).

Reference implementation: diffusers' `FlowMatchEulerDiscreteScheduler`; the arithmetic here keeps
its order and its float32 roundings, so that schedules are equal to the last bit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.samplers.base import NoiseSchedule

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


@dataclass(frozen=True)
class FlowMatchEuler:
    """`shift` bends every schedule alike; dynamic shifting bends it by the image's size.

    The shift is that of Esser et al. 2024 (arXiv:2403.03206, section 5.3.2): more noise for larger
    images. Field names are those of `scheduler_config.json`; `*_image_seq_len` count image tokens.
    """

    num_train_timesteps: int = 1000
    shift: float = 1.0
    use_dynamic_shifting: bool = False
    base_shift: float = 0.5
    max_shift: float = 1.15
    base_image_seq_len: int = 256
    max_image_seq_len: int = 4096
    time_shift_type: str = "exponential"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "FlowMatchEuler":
        """Build a sampler from `scheduler_config.json`. Raise `InvalidModel` for unsupported options."""
        for option in _UNSUPPORTED:
            if config.get(option):
                raise InvalidModel(f"scheduler_config.json: {option}={config[option]!r} is not supported")
        known = {field.name for field in fields(cls)}
        sampler = cls(**{name: value for name, value in config.items() if name in known})
        if sampler.time_shift_type not in ("exponential", "linear"):
            raise InvalidModel(
                f"scheduler_config.json: time_shift_type={sampler.time_shift_type!r} "
                "must be 'exponential' or 'linear'"
            )
        return sampler

    def schedule(self, num_inference_steps: int, image_tokens: int) -> NoiseSchedule:
        """Return noise levels from 1 down to 0, shifted as configured; timesteps are 1000·σ."""
        sigmas = np.linspace(1.0, 1 / num_inference_steps, num_inference_steps).astype(np.float32)
        if self.use_dynamic_shifting:
            sigmas = self._shift_by_size(sigmas, image_tokens)
        else:
            sigmas = self.shift * sigmas / (1 + (self.shift - 1) * sigmas)
        sigmas = sigmas.astype(np.float32)
        timesteps = sigmas * np.float32(self.num_train_timesteps)
        return NoiseSchedule((*map(float, sigmas), 0.0), tuple(map(float, timesteps)))

    def step(
        self,
        latents: Float[Tensor, "*shape"],
        prediction: Float[Tensor, "*shape"],
        sigma: float,
        next_sigma: float,
    ) -> Float[Tensor, "*shape"]:
        """Return x + (σ' - σ)·v, computed in float32, in the prediction's dtype.

        As in the reference, σ' - σ and its product with v are rounded to the prediction's dtype before
        they are added; `torch.add(…, alpha=…)` would fuse them.
        """
        delta = torch.tensor(np.float32(next_sigma) - np.float32(sigma)).to(prediction.dtype)
        return (latents.float() + delta * prediction).to(prediction.dtype)

    def predict_x0(
        self, latents: Float[Tensor, "*shape"], prediction: Float[Tensor, "*shape"], sigma: float
    ) -> Float[Tensor, "*shape"]:
        """Return x₀ = x - σ·v: a step down to σ = 0."""
        return self.step(latents, prediction, sigma, 0.0)

    def _shift_by_size(self, sigmas: np.ndarray, image_tokens: int) -> np.ndarray:
        """Shift by μ, which is linear in the image's tokens: e^μ / (e^μ + 1/σ - 1), as the reference."""
        slope = (self.max_shift - self.base_shift) / (self.max_image_seq_len - self.base_image_seq_len)
        mu = image_tokens * slope + (self.base_shift - slope * self.base_image_seq_len)
        scale = math.exp(mu) if self.time_shift_type == "exponential" else mu
        return np.asarray(scale / (scale + (1 / sigmas - 1)))
