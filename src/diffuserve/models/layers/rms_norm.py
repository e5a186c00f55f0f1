"""Root mean square norm with weights (Zhang & Sennrich 2019, arXiv:1910.07467)."""

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor, nn

from diffuserve.models.layers.fused_ops import is_fused


class TokenRmsNorm(nn.Module):
    """Divides each token by its RMS, and multiplies it by a learned weight, in float32.

    The references round before the weight, too: in float32 results are theirs. Like a `Mod` a factor of each
    sequence may be taken along: its rows are found by `owner`, or without one match the tokens or are one.
    """

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim), requires_grad=False)
        self.eps = eps

    def forward(
        self,
        x: Float[Tensor, "*tokens d"],
        scale: Float[Tensor, "rows d"] | None = None,
        owner: Int[Tensor, "*tokens"] | None = None,
    ) -> Float[Tensor, "*tokens d"]:
        """Return scale·weight·x/RMS(x), in the dtype of `x`."""
        if is_fused(x) and (scale is None) is (owner is None):
            rows = x.flatten(0, -2)
            return torch.ops.diffuserve.rms_norm_modulated(
                rows, self.weight, scale, owner, self.eps, out=torch.empty_like(rows)
            ).view_as(x)
        wide = x.float()
        # On a CPU products of float32 and bf16 take twice the time of those of float32.
        normed = wide.mul(inverse_rms(wide, self.eps)).mul_(self.weight.float())
        if scale is not None:
            normed.mul_((scale if owner is None else scale[owner]).float())
        return normed.to(x.dtype)


def inverse_rms(x: Float32[Tensor, "*rows d"], eps: float) -> Float32[Tensor, "*rows 1"]:
    """Return 1/RMS of each row; `eps` is added to the mean square. No tensor of squares is made."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
