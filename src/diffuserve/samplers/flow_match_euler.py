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
from jaxtyping import Float
from pydantic import Field, with_config
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.model_config import SCHEMA, parse_config
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
_MOST_TOKENS, _MAX_MU = 1 << 18, 700.0  # e^μ overflows above 709


@with_config(SCHEMA)
@dataclass(frozen=True)
class FlowMatchEuler:
    """`shift` bends every schedule alike; dynamic shifting bends it by the image's size.

    The shift is that of Esser et al. 2024 (arXiv:2403.03206, section 5.3.2): more noise for larger
    images. Field names are those of `scheduler_config.json`; `*_image_seq_len` count image tokens.
    """

    num_train_timesteps: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    shift: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    use_dynamic_shifting: bool = False
    base_shift: Annotated[float, Field(ge=-20, le=20)] = 0.5
    max_shift: Annotated[float, Field(ge=-20, le=20)] = 1.15
    base_image_seq_len: Annotated[int, Field(ge=1, le=1 << 24)] = 256
    max_image_seq_len: Annotated[int, Field(ge=1, le=1 << 24)] = 4096
    time_shift_type: Literal["exponential", "linear"] = "exponential"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "FlowMatchEuler":
        """Build a sampler from `scheduler_config.json`.

        Raise `InvalidModel` for unsupported options and for values out of bounds.
        """
        for option in _UNSUPPORTED:
            if config.get(option):
                raise InvalidModel(f"scheduler_config.json: {option}={config[option]!r} is not supported")
        sampler = parse_config(cls, config, "scheduler_config.json")
        sampler._check_shift()
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

    def _check_shift(self) -> None:
        """Raise `InvalidModel` if the shift of some image has no finite value."""
        sizes = (self.base_image_seq_len, self.max_image_seq_len)
        if sizes[0] == sizes[1] or not all(abs(self._mu(tokens)) < _MAX_MU for tokens in (1, _MOST_TOKENS)):
            raise InvalidModel(
                f"scheduler_config.json: base_shift={self.base_shift} at base_image_seq_len={sizes[0]} and "
                f"max_shift={self.max_shift} at max_image_seq_len={sizes[1]} are too steep"
            )

    def _mu(self, image_tokens: int) -> float:
        slope = (self.max_shift - self.base_shift) / (self.max_image_seq_len - self.base_image_seq_len)
        return image_tokens * slope + (self.base_shift - slope * self.base_image_seq_len)

    def _shift_by_size(self, sigmas: np.ndarray, image_tokens: int) -> np.ndarray:
        """Shift by μ, which is linear in the image's tokens: e^μ / (e^μ + 1/σ - 1), as the reference."""
        mu = self._mu(image_tokens)
        scale = math.exp(mu) if self.time_shift_type == "exponential" else mu
        return np.asarray(scale / (scale + (1 / sigmas - 1)))
