"""The feed-forward network of transformer blocks."""

from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.linear import Linear


class FeedForward(nn.Module):
    """A wide product, GELU, and a narrow product. Submodules are named as in diffusers' checkpoints."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.net = nn.ModuleList([_Projection(dim, hidden_dim), nn.Identity(), Linear(hidden_dim, dim)])

    def forward(
        self, x: Float[Tensor, "tokens d"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "tokens d"]:
        widen, _, narrow = self.net
        return narrow(widen(x, adapters), adapters)


class _Projection(nn.Module):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.proj = Linear(in_features, out_features, gelu=True)

    def forward(
        self, x: Float[Tensor, "tokens in"], adapters: RowAdapters | None
    ) -> Float[Tensor, "tokens out"]:
        return self.proj(x, adapters)
