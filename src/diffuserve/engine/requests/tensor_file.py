"""Safetensors files with a request's tensors and texts, received from other machines."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from diffuserve.domain.jobs.checkpoint import HEADER_BYTES

_LENGTH_BYTES = 8
_CHECKSUM = "crc32"


class DamagedFile(ValueError):
    """A file is truncated, altered or too large to be valid."""


@dataclass(frozen=True)
class TensorFile:
    """Content of a file: tensors by name, and texts by name."""

    tensors: Mapping[str, Tensor]
    texts: Mapping[str, str]


def write_tensors(path: Path, content: TensorFile) -> None:
    """Write a file. Tensors may share memory."""
    tensors = {name: tensor.contiguous().clone() for name, tensor in content.tensors.items()}
    save_file(tensors, path, {**content.texts, _CHECKSUM: _checksum(TensorFile(tensors, content.texts))})


def read_tensors(path: Path, max_bytes: int | None = None) -> TensorFile:
    """Return a file's content. Raise `DamagedFile` unless it is complete, unchanged and within bounds."""
    try:
        if max_bytes is not None:
            check_bounds(path, max_bytes)
        with safe_open(path, "pt") as file:
            names, texts = file.keys(), file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise DamagedFile(str(error)) from error
    expected = texts.pop(_CHECKSUM, None)  # Earlier workers wrote none.
    content = TensorFile(tensors, texts)
    if expected is not None and expected != (found := _checksum(content)):
        raise DamagedFile(f"its checksum is {found}, and {expected} was written")
    return content


def _checksum(content: TensorFile) -> str:
    """Return the CRC-32 of texts and tensors, each with its name; it finds accidents, not attacks."""
    total = zlib.crc32(repr(sorted(content.texts.items())).encode())
    for name, tensor in sorted(content.tensors.items()):
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.contiguous().flatten().view(torch.uint8).numpy().data, total)
    return f"{total:08x}"


def check_bounds(path: Path, max_bytes: int) -> None:
    """Raise `ValueError` for a file that would take more memory to read than its content can need."""
    size = path.stat().st_size
    if size > max_bytes:
        raise ValueError(f"it has {size:,} bytes, and at most {max_bytes:,} are possible")
    with path.open("rb") as file:
        header = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if header > HEADER_BYTES:
        raise ValueError(f"its header has {header:,} bytes, and at most {HEADER_BYTES:,} are possible")
