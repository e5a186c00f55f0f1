"""Sinusoidal embedding of timesteps (Ho et al. 2020, arXiv:2006.11239), cosines first."""

import math

import torch
from jaxtyping import Float, Float32
from torch import Tensor


def timestep_embedding(
    timesteps: Float[Tensor, "rows"], num_channels: int, max_period: float = 10_000.0
) -> Float32[Tensor, "rows channels"]:
    """Return the cosines, then the sines, of t·max_period^(-i/half); `num_channels` is even."""
    half = num_channels // 2
    exponents = torch.arange(half, dtype=torch.float32, device=timesteps.device) * (
        -math.log(max_period) / half
    )
    angles = timesteps.float()[:, None] * exponents.exp()[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
