"""The tensors of a safetensors file, by its header. Importing this loads no torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_HEADER_LENGTH_BYTES = 8


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file, whose bytes begin at `offset` of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file that was opened by safetensors, which has checked it."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(_HEADER_LENGTH_BYTES), "little")
        header: Mapping[str, dict[str, object]] = json.loads(opened.read(size))
    start = _HEADER_LENGTH_BYTES + size
    return {name: _stored(entry, start) for name, entry in header.items() if name != "__metadata__"}


def _stored(entry: dict[str, object], start: int) -> StoredTensor:
    shape, offsets = entry["shape"], entry["data_offsets"]
    assert isinstance(shape, list)
    assert isinstance(offsets, list)
    first, last = offsets
    return StoredTensor(str(entry["dtype"]), tuple(shape), start + first, last - first)
