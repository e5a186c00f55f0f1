"""Adapters of many requests in one layer as two products, however many adapters there are.

Down matrices stand side by side and up matrices below one another. Between the two products, each row keeps
the channels of its own adapters, times their weights. On a GPU this is fewer kernels than a pair of products
for each run of rows; it computes more, which a GPU does not notice.
"""

from collections.abc import Hashable, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from diffuserve.models.layers.adapted.adapters import AdaptedRows, Delta, Masks
from diffuserve.models.machine.devices import to_device


@dataclass(frozen=True)
class StackedDelta:
    """A delta of a layer, with its weight in each run of rows; 0 where it is not used."""

    delta: Delta
    weights: tuple[float, ...]


def add_stacked(
    y: Float[Tensor, "rows out"],
    parts: Sequence[Float[Tensor, "rows _"]],
    adapted: Sequence[AdaptedRows],
    kept: MutableMapping[Hashable, Masks],
) -> None:
    """Add to the product of a layer what adapters do; `parts` are its input, side by side.

    The masks are kept, since most layers have the same.
    """
    pieces = _pieces(adapted)
    key = tuple((each.delta.rank, each.weights) for each in pieces), tuple(each.start for each in adapted)
    if key not in kept:
        kept[key] = _masks(pieces, adapted, y)
    masks = kept[key]
    between = between_products(parts, torch.cat([piece.delta.down for piece in pieces], dim=1))
    # What is not a row's own may be infinite: it is replaced, not multiplied by 0.
    between.mul_(masks.weights).masked_fill_(masks.others, 0)
    first = 0
    for _, group in groupby(pieces, key=_columns):
        own = [piece.delta for piece in group]
        up = torch.cat([delta.up for delta in own])
        y[:, own[0].columns].addmm_(between[:, first : first + len(up)], up)
        first += len(up)
    _add_biases(y, pieces, masks)


def _pieces(adapted: Sequence[AdaptedRows]) -> list[StackedDelta]:
    """Return the deltas of all runs, each once, those of the same columns together."""
    weights: dict[int, list[float]] = {}
    deltas: dict[int, Delta] = {}
    for index, run in enumerate(adapted):
        for delta, weight in run.deltas:
            deltas[id(delta)] = delta
            weights.setdefault(id(delta), [0.0] * len(adapted))[index] += weight
    pieces = [StackedDelta(delta, tuple(weights[key])) for key, delta in deltas.items()]
    return sorted(pieces, key=_columns)


def _columns(piece: StackedDelta) -> tuple[int, int]:
    return piece.delta.columns.start, piece.delta.columns.stop


def between_products(
    parts: Sequence[Float[Tensor, "rows _"]], down: Float[Tensor, "in channels"]
) -> Float[Tensor, "rows channels"]:
    """Return the first product of rows whose features are in one tensor or in several, side by side."""
    first, *others = zip(parts, down.split([part.shape[1] for part in parts]), strict=True)
    between = torch.mm(*first)
    for part, rows in others:
        between.addmm_(part, rows)
    return between


def _add_biases(y: Tensor, pieces: Sequence[StackedDelta], masks: Masks) -> None:
    channel = 0
    for piece in pieces:
        delta = piece.delta
        if delta.bias is not None:
            y[:, delta.columns].add_(masks.weights[:, channel, None] * delta.bias)
        channel += delta.rank


def _masks(pieces: Sequence[StackedDelta], adapted: Sequence[AdaptedRows], y: Tensor) -> Masks:
    """Return the masks of the rows of `y`; those of no run have weights of 0."""
    columns = [(*piece.weights, 0.0) for piece in pieces for _ in range(piece.delta.rank)]
    table = torch.tensor(columns).t().contiguous()
    owner = torch.full((len(y),), len(adapted))
    for run, each in enumerate(adapted):
        owner[each.rows] = run
    weights = to_device(table, y.device).index_select(0, to_device(owner, y.device))
    return Masks(weights, weights == 0)
