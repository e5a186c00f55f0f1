"""Weights that stay in their few bits when a file becomes a folder: those whose rows a converter only moved.

Codes, scales and zeros all have the rows of their weight, so what a converter splits and joins of
weights is split and joined of each of these.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile, FewBits
from diffuserve.models.checkpoint_files.tensor_writer import PlannedTensor
from diffuserve.models.layers.quantized.quantization import STORED_DTYPES, QuantizedWeight

_CUTS = ("split", "split_with_sizes", "chunk")
_JOIN = "cat"


@dataclass(frozen=True)
class Rows:
    """Rows of one of a file's tensors."""

    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


Pieces = tuple[Rows, ...]
"""The rows of a tensor, in their order."""


def pieces_after(
    function: str, inputs: Sequence[tuple[torch.Size, Pieces | None]], results: Sequence[torch.Size]
) -> list[Pieces | None]:
    """Return what rows a function's results have; `None` for those that it may have changed otherwise."""
    rows = [row for _, pieces in inputs for row in pieces or ()]
    sides = {tuple(shape[1:]) for shape in (*results, *(shape for shape, _ in inputs))}
    moves_rows = function == _JOIN or (function in _CUTS and len(inputs) == 1)
    num_rows = sum(shape[0] for shape in results if shape)
    if not moves_rows or len(sides) != 1 or num_rows != sum(row.size for row in rows):
        return [None] * len(results)
    ends = accumulate((shape[0] for shape in results), initial=0)
    return [tuple(_cut(rows, start, stop)) for start, stop in pairwise(ends)]


def _cut(rows: Sequence[Rows], start: int, stop: int) -> Iterator[Rows]:
    """Yield those of all rows that are from `start` to `stop`."""
    before = 0
    for row in rows:
        first, last = max(start - before, 0), min(stop - before, row.size)
        if first < last:
            yield Rows(row.name, row.start + first, row.start + last)
        before += row.size


class FewBitsReader:
    """Reads weights of a file in their few bits, and keeps the last: its tensors are asked for in turn."""

    def __init__(self, file: CheckpointFile) -> None:
        self._file = file
        self._last: tuple[str, QuantizedWeight] | None = None

    def planned(self, name: str, pieces: Pieces | None) -> dict[str, PlannedTensor] | None:
        """Return the tensors to write for a weight; `None` unless all of its rows have the same few bits."""
        kinds = {self._file.tensors[rows.name].few_bits for rows in pieces or ()}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is None or pieces is None:
            return None
        shape = (sum(rows.size for rows in pieces), self._file.tensors[pieces[0].name].shape[1])
        return {
            f"{name}{ending}": PlannedTensor(each, dtype, partial(self._read, pieces, ending))
            for ending, each, dtype in _tensors(kind, *shape)
        }

    def _read(self, pieces: Pieces, ending: str) -> Tensor:
        return torch.cat([self._weight(each.name).tensors[ending][each.start : each.stop] for each in pieces])

    def _weight(self, name: str) -> QuantizedWeight:
        if self._last is None or self._last[0] != name:
            self._last = None  # so that memory holds one at a time
            self._last = name, self._file.read_quantized(name)
        return self._last[1]


def _tensors(kind: FewBits, rows: int, columns: int) -> Iterator[tuple[str, tuple[int, ...], torch.dtype]]:
    """Yield the tensors of a weight: the ending of each one's name, its shape and its dtype."""
    is_packed = kind.kind is Quantization.INT4
    yield "", (rows, columns // 2 if is_packed else columns), STORED_DTYPES[kind.kind]
    if kind.group is None:
        yield "_scale", (rows,), torch.float32
        return
    for ending in ("_scale", "_zero") if is_packed else ("_scale",):
        yield ending, (rows, columns // kind.group), torch.float16
