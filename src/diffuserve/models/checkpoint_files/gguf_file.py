"""A GGUF file as a `CheckpointFile`. Importing this loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.quantization import SMALL_GROUP, Quantization
from diffuserve.models.checkpoint_files.checkpoint_file import FewBits, TensorInfo
from diffuserve.models.checkpoint_files.gguf_header import (
    GgufHeader,
    GgufTensor,
    Value,
    read_header,
)

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

_SHAPE = "comfy.gguf.orig_shape."
"""Before a tensor's name: its shape, where rows were laid out anew because they are no whole blocks."""
_LANGUAGE_MODELS = ("t5", "llama", "gemma", "qwen2", "qwen3", "clip", "bert", "mistral")
_FILE_TYPE = "general.file_type"


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file whose header was read and checked; its blocks are dequantized when they are read."""

    path: Path
    header: GgufHeader = field(repr=False)

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {
            name: TensorInfo(self._shape(tensor), tensor.dtype, tensor.type.name, self._few_bits(tensor))
            for name, tensor in self.header.tensors.items()
        }

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        values = self.header.metadata.items()
        return {key: str(value) for key, value in values if value is not None and not key.startswith(_SHAPE)}

    def read(self, name: str) -> Tensor:
        from diffuserve.models.checkpoint_files.gguf_tensors import read_tensor

        return read_tensor(self.path, self.header.tensors[name]).view(self.tensors[name].shape)

    def read_quantized(self, name: str) -> Any:
        from diffuserve.models.checkpoint_files.gguf_tensors import read_quantized

        return read_quantized(self.path, self.header.tensors[name])

    def _few_bits(self, tensor: GgufTensor) -> FewBits | None:
        """Return what a matrix of blocks is kept in."""
        if tensor.is_plain or len(tensor.shape) != 2 or f"{_SHAPE}{tensor.name}" in self.header.metadata:
            return None
        return FewBits(Quantization.INT4 if tensor.keeps_4_bits else Quantization.INT8, SMALL_GROUP)

    def _shape(self, tensor: GgufTensor) -> tuple[int, ...]:
        """Return the shape that its authors gave to a tensor. Raise `InvalidModel` for one of other size."""
        stated = self.header.metadata.get(f"{_SHAPE}{tensor.name}")
        if stated is None:
            return tensor.shape
        if isinstance(stated, tuple) and all(type(side) is int and side > 0 for side in stated):
            shape = tuple(int(side) for side in stated)
            if prod(shape) == prod(tensor.shape):
                return shape
        raise InvalidModel(
            f"{self.path}: {tensor.name!r} of shape {tensor.shape} was {stated!r}, of other size"
        )


def open_gguf(path: Path) -> GgufFile:
    """Read and check the header of a GGUF file. Raise `InvalidModel` if it is none, or of text."""
    file = GgufFile(path, read_header(path))
    _check_model(file)
    _ = file.tensors  # checks the shapes
    return file


def _check_model(file: GgufFile) -> None:
    metadata = file.header.metadata
    if not file.header.tensors:
        raise InvalidModel(f"{file.path}: holds no tensors")
    if _number(metadata.get("split.count")) > 1:
        raise InvalidModel(f"{file.path}: a part of several; join them with llama-gguf-split --merge")
    architecture = str(metadata.get("general.architecture", ""))
    if architecture.startswith(_LANGUAGE_MODELS):
        raise InvalidModel(
            f"{file.path}: a model of text (general.architecture={architecture!r}), of which none is "
            "read as GGUF; take its folder in transformers' format"
        )


def _number(value: Value) -> int:
    return value if isinstance(value, int) else 0
