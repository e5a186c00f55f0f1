"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) as complex rotation.

Adjacent channel pairs (2i, 2i+1) are one complex number, turned by its position's angle: one
complex product instead of two multiplications, a swap and an addition over the whole tensor.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Complex64, Float, Float32
from torch import Tensor


def rotations(
    positions: Float[Tensor, "tokens axes"], axes_dims: Sequence[int], theta: float = 10_000.0
) -> Complex64[Tensor, "tokens half"]:
    """Return unit complex numbers for each token, its axes side by side.

    Axis `a` of `axes_dims[a]` channels turns by position·θ^(-2i/dim); angles in float64, as in BFL's `rope`.
    """
    angles = []
    for axis, dim in enumerate(axes_dims):
        frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles.append(torch.outer(positions[:, axis].double(), frequencies))
    angle = torch.cat(angles, dim=-1)
    return torch.complex(angle.cos().float(), angle.sin().float())


def rotate_(
    x: Float32[Tensor, "*tokens heads dim"], rotation: Complex64[Tensor, "*tokens half"]
) -> Float32[Tensor, "*tokens heads dim"]:
    """Turn each head of each token, in place."""
    torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(rotation.unsqueeze(-2))
    return x


def rotate_pairs(
    x: Float32[Tensor, "*tokens heads dim"], rotation: Float32[Tensor, "*tokens half 2"]
) -> Float32[Tensor, "*tokens heads dim"]:
    """Return each head of each token turned, without complex numbers: compilers do not fuse those."""
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rotation.unsqueeze(-3).unbind(-1)
    return torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1).flatten(-2)
