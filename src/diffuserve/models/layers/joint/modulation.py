"""Modulation of tokens by the factors of their sequence: adaLN (Peebles & Xie 2022, arXiv:2212.09748).

Shapes: `tokens` counts packed tokens, `seq` sequences, `d` is the width. Factors with an `owner` have a row
per sequence, and `owner` is the row of each token. Factors without one have a row per token, or one for all.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.fused_ops import is_fused
from diffuserve.models.layers.linear import Linear
from diffuserve.models.layers.rms_norm import TokenRmsNorm

FACTORS = ("shift", "scale", "gate")  # in the order of the checkpoints' rows
_EPS = 1e-6


class OfSequences(nn.Module):
    """A module whose products have a row for each sequence, not for each token: its tiles are small."""


class Modulation(OfSequences):
    """Factors of each sequence.

    `names` are the factors in the order of the checkpoint's rows. A scale acts as `1 + scale`; the 1 is added
    here, once per sequence. If ranks share the factors, each computes `own_d` channels.
    """

    def __init__(self, dim: int, names: tuple[str, ...], bias: bool = True) -> None:
        super().__init__()
        self.linear = Linear(dim, len(names) * dim, bias=bias)
        self.num_factors = len(names)
        self.scales = tuple(index for index, name in enumerate(names) if name == "scale")

    def forward(
        self, condition: Float[Tensor, "seq d"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "seq factors own_d"]:
        factors = self.linear(condition, adapters).unflatten(-1, (self.num_factors, -1))
        for scale in self.scales:
            factors[:, scale] += 1
        return factors


class Mod(NamedTuple):
    """Modulation factors, named as in BFL's `ModulationOut`; `scale` includes the 1."""

    shift: Float[Tensor, "rows d"]
    scale: Float[Tensor, "rows d"]
    gate: Float[Tensor, "rows d"]
    owner: Int[Tensor, "tokens"] | None

    def normalize(self, x: Float[Tensor, "tokens d"]) -> Float[Tensor, "tokens d"]:
        """Return scale·LayerNorm(x) + shift."""
        return normalize(x, self.scale, self.shift, self.owner)

    def add_gated(
        self, x: Float[Tensor, "tokens d"], change: Float[Tensor, "tokens d"]
    ) -> Float[Tensor, "tokens d"]:
        """Return x + gate·change."""
        return add_gated(x, self.gate, change, self.owner)


def mods_of_tokens(factors: Float[Tensor, "seq factors d"], owner: Int[Tensor, "tokens"]) -> tuple[Mod, ...]:
    """Return shift, scale and gate of each part of a block."""
    rows, owners = factors_of_tokens(factors, owner)
    parts = zip(rows[0::3], rows[1::3], rows[2::3], strict=True)
    return tuple(Mod(shift, scale, gate, owners) for shift, scale, gate in parts)


def factors_of_tokens(
    factors: Float[Tensor, "seq factors d"], owner: Int[Tensor, "tokens"]
) -> tuple[tuple[Float[Tensor, "rows d"], ...], Int[Tensor, "tokens"] | None]:
    """Return the rows of each factor, and each token's row index, or `None` if rows match tokens or are one.

    Kernels look up a token's row by its owner; elsewhere rows are gathered.
    """
    if is_fused(factors):
        return factors.unbind(1), owner
    return (factors if factors.shape[0] == 1 else factors.index_select(0, owner)).unbind(1), None


def normalize(
    x: Float[Tensor, "tokens d"],
    scale: Float[Tensor, "rows d"],
    shift: Float[Tensor, "rows d"],
    owner: Int[Tensor, "tokens"] | None,
) -> Float[Tensor, "tokens d"]:
    """Return scale·LayerNorm(x) + shift; the norm has no weights of its own."""
    if owner is None:
        return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=_EPS), scale)
    return torch.ops.diffuserve.norm_modulated(x, scale, shift, owner, _EPS, out=torch.empty_like(x))


def add_gated(
    x: Float[Tensor, "tokens d"],
    gate: Float[Tensor, "rows d"],
    change: Float[Tensor, "tokens d"],
    owner: Int[Tensor, "tokens"] | None,
    norm: TokenRmsNorm | None = None,
) -> Float[Tensor, "tokens d"]:
    """Return x + gate·change, where `norm` is applied to the change first."""
    if owner is None:
        return torch.addcmul(x, gate, change if norm is None else norm(change))
    weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    return torch.ops.diffuserve.add_gated(x, gate, change, owner, weight, eps, out=torch.empty_like(x))
