"""Reads parts of a file's tensors, and little else from the disk.

The kernel reads ahead in a mapped file: for each part it also reads megabytes around it, which are other
ranks' parts. So ranks that shard a model read byte ranges, and advise the kernel not to read ahead.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffuserve.models.layers.tensor_parallel import TensorShard
from diffuserve.models.weights.device_reader import bytes_of, read_at
from diffuserve.models.weights.stored_tensors import StoredTensor

_MIN_BYTES = 4 * 1024  # per row, a page: smaller pieces would touch nearly all pages anyway
_MAX_BYTES = 8 * 1024 * 1024  # per read
_NUM_READS = 4  # concurrent reads
_PIECES_PER_TASK = 256  # a task for each row's piece would take longer than its read


@dataclass(frozen=True)
class _Piece:
    """Bytes of a file from `offset` on, and where they begin in the tensor that is filled."""

    offset: int
    start: int
    size: int


def read_part(
    file: Path, stored: StoredTensor, dtype: torch.dtype, share: TensorShard | None = None
) -> Tensor:
    """Return a rank's share of a stored tensor, or all of it, in memory of its own.

    A tensor whose rows have only small pieces of the share is read in full. Raise `OSError` if the file
    cannot be read, or is too short.
    """
    if share is None:
        return _read(file, stored.shape, dtype, _in_parts(_Piece(stored.offset, 0, stored.num_bytes)))
    outer = prod(stored.shape[: share.dim])
    unit = stored.num_bytes // (outer * share.whole)
    if outer > 1 and max(end - start for start, end in share.ranges) * unit < _MIN_BYTES:
        return share.of(read_part(file, stored, dtype))
    shape = (*stored.shape[: share.dim], share.size, *stored.shape[share.dim + 1 :])
    return _read(file, shape, dtype, _pieces(stored, share, outer, unit))


def _pieces(stored: StoredTensor, share: TensorShard, num_rows: int, unit: int) -> Iterator[_Piece]:
    """Yield the piece of each row that belongs to a share; entries have `unit` bytes."""
    start = 0
    for row in range(num_rows):
        for first, end in share.ranges:
            size = (end - first) * unit
            yield from _in_parts(_Piece(stored.offset + (row * share.whole + first) * unit, start, size))
            start += size


def _in_parts(piece: _Piece) -> Iterator[_Piece]:
    for done in range(0, piece.size, _MAX_BYTES):
        yield _Piece(piece.offset + done, piece.start + done, min(_MAX_BYTES, piece.size - done))


def _read(file: Path, shape: Sequence[int], dtype: torch.dtype, pieces: Iterator[_Piece]) -> Tensor:
    tensor = torch.empty(tuple(shape), dtype=dtype)
    array: Any = bytes_of(tensor).numpy()
    content, todo = memoryview(array), list(pieces)
    tasks = [todo[first : first + _PIECES_PER_TASK] for first in range(0, len(todo), _PIECES_PER_TASK)]
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if hasattr(os, "posix_fadvise"):  # not on a Mac
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        with ThreadPoolExecutor(_NUM_READS) as threads:
            list(threads.map(lambda task: _fill(descriptor, content, task), tasks))
    finally:
        os.close(descriptor)
    return tensor


def _fill(descriptor: int, content: memoryview, pieces: Sequence[_Piece]) -> None:
    for piece in pieces:
        if not read_at(descriptor, content[piece.start : piece.start + piece.size], piece.offset):
            raise OSError(f"the file ends before byte {piece.offset + piece.size:,}")
