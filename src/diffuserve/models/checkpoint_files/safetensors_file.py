"""A safetensors file as a `CheckpointFile`. Importing this loads no torch."""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.checkpoint_files.checkpoint_file import TensorInfo
from diffuserve.models.folders.folder import first_line
from diffuserve.models.weights.stored_tensors import StoredTensor, stored_tensors

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_TEXT = frozenset(map(ord, string.printable))
WEB_PAGE = "a web page, not weights: the download failed, perhaps for want of a login or a token; repeat it"
_MAX_TENSORS = 100_000  # thirty times those of the largest model


@dataclass(frozen=True)
class SafetensorsFile:
    """A safetensors file that the library has checked: offsets in bounds, no holes, no overlaps."""

    path: Path
    stored: Mapping[str, StoredTensor] = field(repr=False)
    metadata: Mapping[str, str] = field(repr=False)

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {
            name: TensorInfo(tensor.shape, _DTYPES.get(tensor.dtype, tensor.dtype), tensor.dtype)
            for name, tensor in self.stored.items()
        }

    def read(self, name: str) -> Tensor:
        import torch

        from diffuserve.models.weights.part_reader import read_part

        stored = self.stored[name]
        if stored.dtype not in _DTYPES:
            raise InvalidModel(f"{self.path}: {name} is stored as {stored.dtype}, which is not read")
        try:
            return read_part(self.path, stored, getattr(torch, _DTYPES[stored.dtype]))
        except OSError as error:
            raise InvalidModel(f"{self.path}: {name} cannot be read ({first_line(error)})") from error

    def read_quantized(self, name: str) -> None:
        raise AssertionError(f"{name} has no few bits")


def is_web_page(path: Path) -> bool:
    """Return whether a file is what a site shows in place of a download, such as its login."""
    try:
        with path.open("rb") as file:
            begin = file.read(8)  # in weights the length of their header, which no text is short enough for
    except OSError:
        return False
    return begin.lstrip()[:1] == b"<" and all(byte in _TEXT for byte in begin)


def open_safetensors(path: Path) -> SafetensorsFile:
    """Read and check the header of a safetensors file. Raise `InvalidModel` if it is none, or not whole."""
    from safetensors import SafetensorError, safe_open

    if is_web_page(path):
        raise InvalidModel(f"{path}: {WEB_PAGE}")
    try:
        with safe_open(path, framework="numpy") as reader:  # it checks the header against the file
            metadata = reader.metadata() or {}
        stored = stored_tensors(path)
    except (SafetensorError, OSError) as error:
        raise InvalidModel(f"{path}: truncated or not a safetensors file ({first_line(error)})") from error
    if not 0 < len(stored) <= _MAX_TENSORS:
        raise InvalidModel(f"{path}: {len(stored):,} tensors, where 1 to {_MAX_TENSORS:,} are a model's")
    return SafetensorsFile(path, stored, metadata)
