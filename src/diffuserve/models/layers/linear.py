"""Linear layers over packed rows."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Linear(nn.Module):
    """`y = activation(x Wᵀ + b)`, with an optional fixed tile of rows.

    A matrix product may sum in another order when its number of rows changes, so the same row can
    differ in its last bit between batches. With `tile_rows` set, every product has exactly that
    many rows (the last tile is padded), and a row's result no longer depends on its neighbours.
    """

    def __init__(self, in_features: int, out_features: int, gelu: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False)
        self.gelu = gelu
        self.tile_rows: int | None = None

    def forward(self, x: Float[Tensor, "rows in"]) -> Float[Tensor, "rows out"]:
        if self.tile_rows is None:
            return self._product(x)
        num_rows = x.shape[0]
        padded = F.pad(x, (0, 0, 0, -num_rows % self.tile_rows))
        return torch.cat([self._product(tile) for tile in padded.split(self.tile_rows)])[:num_rows]

    def _product(self, x: Tensor) -> Tensor:
        if not self.gelu:
            return F.linear(x, self.weight, self.bias)
        if x.device.type == "cpu" and x.dtype == torch.bfloat16 and torch.backends.mkldnn.is_available():
            # oneDNN applies the activation inside the product: half the time of a separate tanh-GELU.
            return _linear_gelu(x, self.weight, self.bias)
        return F.gelu(F.linear(x, self.weight, self.bias), approximate="tanh")


def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], "tanh")
    return result


def fix_tile_rows(module: nn.Module, tile_rows: int) -> None:
    """Give every `Linear` inside `module` the same fixed tile."""
    for layer in module.modules():
        if isinstance(layer, Linear):
            layer.tile_rows = tile_rows
