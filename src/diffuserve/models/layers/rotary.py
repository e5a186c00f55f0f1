"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) as complex rotation.

Adjacent channel pairs (2i, 2i+1) are one complex number, turned by its position's angle: one
complex product instead of two multiplications, a swap and an addition over the whole tensor.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Complex64, Float, Float32, Int
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


def section_rotations(
    positions: Int[Tensor, "tokens axes"], dim: int, sections: Sequence[int] | None, theta: float
) -> Complex64[Tensor, "tokens half"]:
    """Return unit complex numbers for each token, of whose `dim`/2 pairs each turns by one axis.

    Each pair has a wavelength of its own, and `sections` are the numbers of pairs of each axis, in order;
    `None` or a position of one axis stand for one section. Angles are in float32, as in transformers, with
    which language models are trained.
    """
    half = dim // 2
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if sections is None or positions.shape[1] == 1:
        sections = (half,)
    axes = torch.repeat_interleave(torch.arange(len(sections)), torch.tensor(sections))
    frequencies, axes = (each.to(positions.device) for each in (frequencies, axes))
    angle = positions[:, axes].float() * frequencies
    return torch.complex(angle.cos(), angle.sin())


def rotate_halves(
    x: Float[Tensor, "*tokens heads dim"], rotation: Complex64[Tensor, "*tokens half"]
) -> Float[Tensor, "*tokens heads dim"]:
    """Return each head of each token turned, in float32: the pairs are channels i and i + dim/2.

    Language models pair channels so; a rotation is otherwise that of `rotate_`.
    """
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = torch.view_as_real(rotation).unsqueeze(-3).unbind(-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
