"""The gated feed-forward network of transformer blocks: SwiGLU (Shazeer 2020, arXiv:2002.05202)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.fused_ops import is_fused
from diffuserve.models.layers.linear import Linear
from diffuserve.models.layers.tensor_parallel import Sharding

GATED_SHARDS = {"linear_in": Sharding(parts=(1, 1)), "linear_out": Sharding(by_inputs=True)}
"""How ranks share each of its layers: gates and values are cut alike."""


class GatedFeedForward(nn.Module):
    """A product for gates and values, SiLU of the gates times the values, and a product back.

    Submodules are named as in FLUX.2's checkpoints. `linear_in` has the gates' rows first: those of
    checkpoints with a tensor for gates and one for values are put there as two equal parts.
    """

    def __init__(self, dim: int, hidden_dim: int, bias: bool = False) -> None:
        super().__init__()
        self.linear_in = Linear(dim, 2 * hidden_dim, bias=bias)
        self.linear_out = Linear(hidden_dim, dim, bias=bias)

    def forward(
        self, x: Float[Tensor, "tokens d"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "tokens d"]:
        return self.linear_out(gated(self.linear_in(x, adapters)), adapters)


def gated(both: Float[Tensor, "tokens two_hidden"]) -> Float[Tensor, "tokens hidden"]:
    """Return SiLU of the first half of each token's channels times the second half."""
    gate, value = both.chunk(2, dim=-1)
    if is_fused(both):
        return torch.ops.diffuserve.silu_gated(both, out=both.new_empty(gate.shape))
    return F.silu(gate).mul_(value)
