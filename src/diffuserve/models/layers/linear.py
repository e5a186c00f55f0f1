"""Linear layers over packed rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.layers.adapted.adapted_convolution import AdaptedConv2d
from diffuserve.models.layers.adapted.adapters import AdaptedRows, Delta, RowAdapters, with_others
from diffuserve.models.layers.adapted.stacked_adapters import add_stacked, between_products
from diffuserve.models.machine.cpu_products import fuses_gelu, gelu_, linear, linear_gelu, takes_products


@dataclass(frozen=True)
class Tiling:
    """Tiles of `rows` rows; the last one is padded to a multiple of `tail_rows`.

    It serves two purposes. oneDNN compiles a kernel for every new shape, which takes longer than the product
    itself, and the number of rows of a mixed batch varies: with tiles, a dozen shapes serve all batches. And
    with `tail_rows == rows` every product has the same shape, so a row's result does not depend on its
    neighbors: sums keep their order, to the last bit.
    """

    rows: int
    tail_rows: int

    def padding(self, num_rows: int) -> int:
        """Return the rows to add so that the last tile has an allowed size."""
        return -(num_rows % self.rows) % self.tail_rows


_CPU_TILINGS = (Tiling(rows=512, tail_rows=32), Tiling(rows=32, tail_rows=8))
_DETERMINISTIC_TILINGS = (Tiling(rows=256, tail_rows=256), Tiling(rows=16, tail_rows=16))

_OF_ONEDNN = (torch.float32, torch.bfloat16)
_VECTOR = 32  # kernels treat the remainder after whole vectors differently


def cpu_tilings(deterministic: bool) -> tuple[Tiling, Tiling]:
    """Return the tiles of products over tokens, and of products with one row for each sequence."""
    return _DETERMINISTIC_TILINGS if deterministic else _CPU_TILINGS


def check_deterministic_width(width: int, origin: object) -> None:
    """Raise `InvalidModel`, which names `origin`, for a width with which rows depend on their neighbors."""
    if width % _VECTOR:
        raise InvalidModel(
            f"{origin}: deterministic mode needs a width in multiples of {_VECTOR}, not {width}"
        )


class Linear(nn.Module):
    """`y = activation(x Wᵀ + b)` for `x` of shape (rows, in_features), in tiles where `tiling` is set.

    The activation is none, or with `gelu` the tanh approximation of GELU (Hendrycks & Gimpel 2016,
    arXiv:1606.08415). Without `bias` b is 0. Adapters are added before the activation, in the dtype of `x`;
    a layer finds its own by its `name`.
    """

    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, gelu: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        own = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None
        self.register_parameter("bias", own)
        self.gelu = gelu
        self.tiling: Tiling | None = None
        self.name = ""

    def forward(
        self, x: Float[Tensor, "rows in"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "rows out"]:
        adapted = self._adapted(adapters)
        if not adapted:
            return self._tiled(x, gelu=self.gelu)
        if self.gelu and self._fuses_gelu(x) and not x.is_cuda:
            return self._gelu_adapted(x, adapted)
        y = self._tiled(x, gelu=False)
        self._add_all(y, [x], adapted, adapters)
        return _gelu(y) if self.gelu else y

    def of_parts(
        self,
        first: Float[Tensor, "rows first_in"],
        second: Float[Tensor, "rows second_in"],
        adapters: RowAdapters | None = None,
    ) -> Float[Tensor, "rows out"]:
        """Return the product of rows whose features are in two tensors.

        On CUDA the products of both are added up, which saves writing the rows side by side. Elsewhere that
        is done a tile at a time, which stays in the cache.
        """
        if first.is_cuda:
            left, right = self.weight.split([first.shape[1], second.shape[1]], dim=1)
            y = F.linear(first, left, self.bias).addmm_(second, right.t())
        else:
            y = self._tiled(first, second, gelu=False)
        self._add_all(y, [first, second], self._adapted(adapters), adapters)
        return y

    def _adapted(self, adapters: RowAdapters | None) -> list[AdaptedRows]:
        """Return the rows to which adapters add something here."""
        if adapters is None:
            return []
        assert self.name, "a layer without a name knows no adapters"
        return adapters.on(self.name)

    def _add_all(
        self,
        y: Tensor,
        parts: Sequence[Tensor],
        adapted: Sequence[AdaptedRows],
        adapters: RowAdapters | None,
    ) -> None:
        """Add all deltas to a product of rows whose features are in one tensor or in several."""
        if y.is_cuda and len(adapted) > 1:
            assert adapters is not None
            add_stacked(y, parts, adapted, adapters.masks)
            return
        for each in adapted:
            self._add(y[each.rows], [part[each.rows] for part in parts], each.deltas)

    def _gelu_adapted(self, x: Tensor, adapted: Sequence[AdaptedRows]) -> Tensor:
        """Return the layer's result where something is added before the activation.

        Other rows keep their kernel, and with it their bits.
        """
        result = x.new_empty(len(x), self.out_features)
        for each in with_others(adapted, len(x)):
            if each.deltas:
                self._fill_widened(result[each.rows], x[each.rows], each.deltas)
            else:
                self._fill_tiles(result[each.rows], [x[each.rows]], gelu=True)
        return result

    def _fill_widened(self, result: Tensor, x: Tensor, deltas: Sequence[tuple[Delta, float]]) -> None:
        """Fill in the activated product of rows to which deltas are added as further inputs.

        So one kernel computes it, with the activation; the weight that is copied for it is soon made up for.
        """
        ups = [self._on_all_columns(delta, delta.up).t() for delta, _ in deltas]
        weight = torch.cat([self.weight, *ups], dim=1)
        bias: Tensor | None = self.bias
        for delta, factor in deltas:
            if delta.bias is not None:
                own = factor * self._on_all_columns(delta, delta.bias)
                bias = own if bias is None else bias + own
        for (tile,), target, padding in self._tiles([x], result):
            padded = F.pad(tile, (0, 0, 0, padding)) if padding else tile
            added = [torch.mm(padded, delta.down).mul_(factor) for delta, factor in deltas]
            target.copy_(linear_gelu(torch.cat([padded, *added], dim=1), weight, bias)[: len(tile)])

    def _on_all_columns(self, delta: Delta, values: Tensor) -> Tensor:
        """Return values of a delta's columns as those of all columns, with zeros where it has none."""
        missing = (delta.columns.start, self.out_features - delta.columns.stop)
        return F.pad(values, missing) if any(missing) else values

    def _add(self, y: Tensor, parts: Sequence[Tensor], deltas: Sequence[tuple[Delta, float]]) -> None:
        """Add deltas to a product, in the tiles of the layer."""
        for tile, target, padding in self._tiles(parts, y):
            if padding:
                padded = F.pad(target, (0, 0, 0, padding))
                _add_deltas(padded, [F.pad(part, (0, 0, 0, padding)) for part in tile], deltas)
                target.copy_(padded[: len(target)])
            else:
                _add_deltas(target, tile, deltas)

    def _tiles(
        self, parts: Sequence[Tensor], result: Tensor
    ) -> Iterator[tuple[tuple[Tensor, ...], Tensor, int]]:
        """Yield the tiles of inputs and of their result, and the rows that are to be added to each."""
        rows = len(result) if self.tiling is None else self.tiling.rows
        tiles = zip(*(part.split(rows) for part in parts), strict=True)
        for tile, target in zip(tiles, result.split(rows), strict=True):
            yield tile, target, 0 if self.tiling is None else self.tiling.padding(len(target))

    def _tiled(self, *parts: Tensor, gelu: bool) -> Tensor:
        """Return the product of rows whose features are in one tensor or in several."""
        if self.tiling is None:
            return self._product(_side_by_side(parts), gelu)
        if len(parts[0]) <= self.tiling.rows:
            x = _side_by_side(parts)
            padding = self.tiling.padding(len(x))
            padded = F.pad(x, (0, 0, 0, padding)) if padding else x
            return self._product(padded, gelu)[: len(x)]
        result = parts[0].new_empty(len(parts[0]), self.out_features)
        self._fill_tiles(result, parts, gelu)
        return result

    def _fill_tiles(self, result: Tensor, parts: Sequence[Tensor], gelu: bool) -> None:
        for tile, target, padding in self._tiles(parts, result):
            self._fill(target, _side_by_side(tile), padding, gelu)

    def _fill(
        self, result: Float[Tensor, "rows out"], tile: Float[Tensor, "rows in"], padding: int, gelu: bool
    ) -> None:
        if padding:
            result.copy_(self._product(F.pad(tile, (0, 0, 0, padding)), gelu)[: len(tile)])
        elif gelu and self._fuses_gelu(tile):
            result.copy_(self._product(tile, gelu))
        else:
            self._fill_plain(result, tile)
            if gelu:
                _gelu(result)

    def _fill_plain(self, result: Float[Tensor, "rows out"], tile: Float[Tensor, "rows in"]) -> None:
        if _is_onednns(tile) and tile.dtype == torch.float32:  # torch's own in float32 is not oneDNN's
            result.copy_(linear(tile, self.weight, self.bias))
        elif self.bias is None:
            torch.mm(tile, self.weight.t(), out=result)
        else:
            torch.addmm(self.bias, tile, self.weight.t(), out=result)

    def _product(self, x: Tensor, gelu: bool) -> Tensor:
        if torch.compiler.is_compiling():  # the compiler supports none of the operations below
            y = F.linear(x, self.weight, self.bias)
            return F.gelu(y, approximate="tanh") if gelu else y
        if gelu and self._fuses_gelu(x):
            return self._product_gelu(x)
        multiply = linear if _is_onednns(x) else F.linear
        y = multiply(x, self.weight, self.bias)
        return _gelu(y) if gelu else y

    def _product_gelu(self, x: Tensor) -> Tensor:
        if x.is_cuda and self.bias is not None:  # in the epilogue, where it is the tanh approximation too
            return torch._addmm_activation(self.bias, x, self.weight.t(), use_gelu=True)
        return linear_gelu(x, self.weight, self.bias)

    def _fuses_gelu(self, x: Tensor) -> bool:
        """Return whether one kernel computes the product and the activation."""
        if x.is_cuda:
            return self.bias is not None
        return _is_onednns(x) and fuses_gelu(x.dtype)


def _is_onednns(x: Tensor) -> bool:
    """Return whether oneDNN multiplies such rows."""
    return x.device.type == "cpu" and x.dtype in _OF_ONEDNN and takes_products(x.dtype)


def _gelu(y: Tensor) -> Tensor:
    """Replace values by the tanh approximation of their GELU."""
    if y.device.type == "cpu" and y.dtype == torch.float32:
        return gelu_(y)
    return torch.ops.aten.gelu_(y, approximate="tanh")


def _add_deltas(y: Tensor, parts: Sequence[Tensor], deltas: Sequence[tuple[Delta, float]]) -> None:
    """Add deltas to the product of rows whose features are in one tensor or in several."""
    for delta, weight in deltas:
        own = y[:, delta.columns].addmm_(between_products(parts, delta.down), delta.up, alpha=weight)
        if delta.bias is not None:
            own.add_(delta.bias, alpha=weight)


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=-1)


class PositionsLinear(Linear):
    """A `Linear` over rows that have several positions each: adapters are those of the rows."""

    def forward(
        self, x: Float[Tensor, "rows *positions in"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "rows *positions out"]:
        of_all = None if adapters is None else adapters.times(x.shape[1:-1].numel())
        return super().forward(x.flatten(0, -2), of_all).unflatten(0, x.shape[:-1])


def name_layers(module: nn.Module, prefix: str = "") -> None:
    """Give every `Linear` and convolution inside `module` its full name, by which it knows its adapters.

    Where several modules of a pipeline have layers of one name, a `prefix` tells them apart.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, Linear | AdaptedConv2d):
            layer.name = prefix + name


def set_tiling(module: nn.Module, tiling: Tiling) -> None:
    """Give every `Linear` inside `module` the same tiles."""
    for layer in module.modules():
        if isinstance(layer, Linear):
            layer.tiling = tiling
