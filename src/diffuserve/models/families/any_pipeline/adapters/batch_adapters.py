"""The adapters of a pass's rows, and what they add to the result of a layer of torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from diffuserve.models.layers.adapted.adapters import AdaptedRows, Delta, RowAdapters, Uses


class UnevenRows(ValueError):
    """A layer's input has no equal part for each row of its pass, so that nobody knows whose is whose."""


@dataclass(frozen=True)
class BatchAdapters:
    """The adapters of the rows of a batch. Where all rows have the same, the batch counts as one row.

    Modules fold other axes into that of the rows, such as frames: a layer may have several for each.
    """

    adapters: RowAdapters
    num_rows: int

    @classmethod
    def of(cls, rows: Sequence[int], uses: Sequence[Uses]) -> "BatchAdapters | None":
        """Return the adapters of calls with these numbers of rows, in one pass; `None` if none has any."""
        if all(each == uses[0] for each in uses):
            rows, uses = [1], uses[:1]
        adapters = RowAdapters.of(rows, uses)
        return None if adapters is None else cls(adapters, sum(rows))

    def add(self, name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
        """Add to `y`, the result of a layer for `x`, what the adapters say. Raise `UnevenRows`."""
        adapted = self.adapters.on(name)
        if not adapted:
            return
        if x.ndim == 1:
            x, y = x[None], y[None]
        num_parts, rest = divmod(len(x), self.num_rows)
        if rest or len(y) != len(x):
            raise UnevenRows(f"{name}: {len(x)} rows in a pass of {self.num_rows}")
        for each in adapted:
            _add(layer, each, num_parts, x, y)


def _add(layer: nn.Module, adapted: AdaptedRows, num_parts: int, x: Tensor, y: Tensor) -> None:
    rows = slice(adapted.start * num_parts, adapted.stop * num_parts)
    for delta, weight in adapted.deltas:
        own = x[rows].to(delta.down.dtype)
        if isinstance(layer, nn.Conv2d):
            y[rows].add_(_convolved(layer, own, delta).to(y.dtype), alpha=weight)
        else:
            _add_product(own, y[rows], delta, weight)


def _add_product(x: Tensor, y: Tensor, delta: Delta, weight: float) -> None:
    few = x.flatten(0, -2) @ delta.down
    if y.is_contiguous() and y.dtype is few.dtype:
        y.view(-1, y.shape[-1]).addmm_(few, delta.up, alpha=weight)  # without a copy as large as y
    else:
        y.add_((few @ delta.up).view(y.shape).to(y.dtype), alpha=weight)
    if delta.bias is not None:
        y.add_(delta.bias.to(y.dtype), alpha=weight)


def _convolved(layer: nn.Conv2d, x: Tensor, delta: Delta) -> Tensor:
    """Return what a convolution adds: to few channels with its kernel, and from there to all."""
    kernel = delta.down.t().unflatten(1, layer.weight.shape[1:])
    few = layer._conv_forward(x, kernel, None)  # with the layer's padding and stride
    return F.conv2d(few, delta.up.t()[:, :, None, None], delta.bias)
