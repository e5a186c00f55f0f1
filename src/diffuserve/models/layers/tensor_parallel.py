"""Layers whose weights are sharded over ranks: tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053).

Of two consecutive products, the first is sharded by its outputs (the paper's columns) and the second by its
inputs (its rows). Each rank then has all tokens with some of the features in between, and the ranks add up
their results of the second product. The operation between the two, an activation or attention, needs only
single features or single heads.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.linear import Linear
from diffuserve.parallel.ranks import TensorRanks


@dataclass(frozen=True)
class TensorShard:
    """A rank's share of a tensor: `ranges` of the `whole` entries along `dim`."""

    dim: int
    whole: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        return sum(end - start for start, end in self.ranges)

    @property
    def is_first(self) -> bool:
        """Return whether it is the first rank's share."""
        return self.ranges[0][0] == 0

    def part(self, index: int, count: int) -> "TensorShard":
        """Return the share of one of `count` equal blocks of the tensor, which is stored by itself."""
        block = self.whole // count
        first = index * block
        inside = tuple((a - first, b - first) for a, b in self.ranges if first <= a < first + block)
        return TensorShard(self.dim, block, inside)

    def whole_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the tensor whose share has this `shape`."""
        return (*shape[: self.dim], self.whole, *shape[self.dim + 1 :])

    def of(self, tensor: Tensor) -> Tensor:
        """Return the share of a tensor; one that lies in one piece stays where it is."""
        before = (slice(None),) * self.dim
        pieces = [tensor[(*before, slice(start, end))] for start, end in self.ranges]
        return pieces[0].contiguous() if len(pieces) == 1 else torch.cat(pieces, self.dim)


@dataclass(frozen=True)
class Sharding:
    """How a layer is sharded: by its inputs, or by its outputs.

    `parts` are the relative widths of layers that are fused side by side, such as queries, keys and values;
    each of them is sharded evenly.
    """

    by_inputs: bool = False
    parts: tuple[int, ...] = (1,)

    def ranges(self, width: int, rank: int, size: int) -> tuple[tuple[int, int], ...]:
        """Return the ranges of `width` features that rank `rank` of `size` has. Raise `ValueError` if uneven.

        Loading a model checks before that its sizes can be sharded evenly.
        """
        unit = width // sum(self.parts)
        widths = [unit * part for part in self.parts]
        if sum(widths) != width or any(each % size for each in widths):
            raise ValueError(f"{width} features in parts {self.parts} cannot be cut evenly by {size}")
        starts = (0, *accumulate(widths))
        steps = [each // size for each in widths]
        return tuple((a + rank * b, a + (rank + 1) * b) for a, b in zip(starts, steps, strict=False))


class RowLinear(Linear):
    """A product that is sharded by its inputs: the result is the sum of all ranks' products.

    The bias counts once, on the first rank; the others add zeros. Each rank adds adapters' products of its
    inputs, and the sum has them whole.
    """

    def __init__(self, layer: nn.Linear | Linear, ranks: TensorRanks) -> None:
        """Take over the weights of a layer that is sharded already."""
        nn.Module.__init__(self)
        self.ranks = ranks
        self.out_features = layer.weight.shape[0]
        self.gelu, self.tiling = getattr(layer, "gelu", False), getattr(layer, "tiling", None)
        self.name = ""
        self.weight = nn.Parameter(layer.weight, requires_grad=False)
        self.bias = layer.bias

    def prepare(self) -> None:
        """Keep the bias that was loaded on the first rank alone."""
        if self.bias is not None and self.ranks.index > 0:
            self.bias = nn.Parameter(torch.zeros_like(self.bias), requires_grad=False)

    def forward(
        self, x: Float[Tensor, "*rows in"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "*rows out"]:
        part = super().forward(x.flatten(0, -2), adapters).unflatten(0, x.shape[:-1])
        return self.ranks.add_up(part)

    def of_parts(
        self,
        first: Float[Tensor, "rows first_in"],
        second: Float[Tensor, "rows second_in"],
        adapters: RowAdapters | None = None,
    ) -> Float[Tensor, "rows out"]:
        return self.ranks.add_up(super().of_parts(first, second, adapters))


def shard_layers(
    module: nn.Module, shardings: Mapping[str, Sharding], ranks: TensorRanks
) -> dict[str, TensorShard]:
    """Cut the layers whose full names match a pattern of `shardings`; return the shards of their parameters.

    Beside products and tables these may be norms, whose only parameter is a `weight` by channel. The module
    is on the meta device; `load_weights` fills it, from placements that know their shares.
    """
    shares: dict[str, TensorShard] = {}
    for name, layer in list(module.named_modules()):
        cut = next((cut for pattern, cut in shardings.items() if re.fullmatch(pattern, name)), None)
        if cut is None:
            continue
        shares |= {f"{name}.{each}": share for each, share in _shard_layer(layer, cut, ranks).items()}
        if cut.by_inputs:
            assert isinstance(layer, nn.Linear | Linear)
            owner, _, attribute = name.rpartition(".")
            module.get_submodule(owner).register_module(attribute, RowLinear(layer, ranks))
    return shares


def _shard_layer(layer: nn.Module, cut: Sharding, ranks: TensorRanks) -> dict[str, TensorShard]:
    """Leave a layer its rank's share of the parameters, and return which that is."""
    weight = layer.get_parameter("weight")
    dim = 1 if cut.by_inputs or isinstance(layer, nn.Embedding) else 0
    width = weight.shape[dim]
    share = TensorShard(dim, width, cut.ranges(width, ranks.index, ranks.size))
    shares = {"weight": share}
    if dim == 0 and isinstance(layer, nn.Linear | Linear):
        layer.out_features = share.size
        if layer.bias is not None:
            shares["bias"] = share
    for name in shares:
        parameter = layer.get_parameter(name)
        kept = nn.Parameter(parameter.narrow(dim, 0, share.size).clone(), requires_grad=False)
        setattr(layer, name, kept)
    return shares
