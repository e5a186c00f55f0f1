"""Prepared copies of weights: fused, cast and quantized as in the engine, so that they can be mapped.

A copy is a folder with a safetensors file for each module. The file's key identifies the weights and how they
were prepared: a file with another key is not used. Mappings are private, so that a write to a parameter
changes no file.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear
from diffuserve.models.weights.device_reader import ByteRange, bytes_of, read_to_device
from diffuserve.models.weights.stored_tensors import stored_tensors

log = logging.getLogger(__name__)

_ALIGNMENT = 64  # of tensors: a cache line, and as wide as a CPU's vectors
_PADDING = "padding/"
_CODES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int8: "I8",
    torch.uint8: "U8",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


class NotPrepared(Exception):
    """A copy lacks the weights of a module, or has different ones."""


@dataclass(frozen=True)
class PreparedPart:
    """The weights of one module in a copy: `stem` names their file, and `key` identifies them."""

    stem: str
    key: str


@runtime_checkable
class PreparedCopy(Protocol):
    """A model's weights in prepared form, beside those of its files."""

    def fill(self, module: nn.Module, part: PreparedPart, device: torch.device) -> bool:
        """Fill a module with its weights; return whether the copy has them."""
        ...

    def keep(self, module: nn.Module, part: PreparedPart, device: torch.device) -> None:
        """Record the weights that a module was loaded with and that the copy lacks."""
        ...


def describe_part(module: nn.Module, component: str, *conditions: object) -> PreparedPart:
    """Return the key of a module's weights: its class and shapes, and the conditions of its loading."""
    shapes = [(name, str(each.dtype), list(each.shape)) for name, each in module.named_parameters()]
    described = [shapes, [str(condition) for condition in conditions]]
    key = hashlib.sha256(json.dumps(described).encode()).hexdigest()
    return PreparedPart(f"{component}.{type(module).__name__}", key)


class WholeCopy:
    """A copy that is read; a module that it lacks is loaded from the model, or refused if `is_strict`."""

    def __init__(self, folder: Path, is_strict: bool = False) -> None:
        self._folder, self._is_strict = folder, is_strict

    def fill(self, module: nn.Module, part: PreparedPart, device: torch.device) -> bool:
        """Map the weights, or copy them to a device. Raise `NotPrepared`, if this is strict."""
        try:
            _fill(module, self._folder, part, device)
        except (NotPrepared, SafetensorError, OSError, ValueError, KeyError) as error:
            if self._is_strict:
                raise NotPrepared(str(error)) from error
            log.warning("the prepared copy %s is not used for %s: %s", self._folder, part.stem, error)
            return False
        return True

    def keep(self, module: nn.Module, part: PreparedPart, device: torch.device) -> None:
        """Do nothing: a copy that is read stays as it is."""


class NewCopy:
    """A copy that is being written to a folder; `make_room` is told the bytes of each file before."""

    def __init__(self, folder: Path, make_room: Callable[[int], None]) -> None:
        self._folder, self._make_room = folder, make_room

    def fill(self, module: nn.Module, part: PreparedPart, device: torch.device) -> bool:
        return False

    def keep(self, module: nn.Module, part: PreparedPart, device: torch.device) -> None:
        """Write the weights; on a CPU the module then has the mapped ones, and its own memory is free."""
        tensors = {name: parameter.data for name, parameter in module.named_parameters()}
        orders = {name: order for name, tensor in tensors.items() if (order := _order(tensor)) is not None}
        metadata = {
            "format": "pt",
            "key": _file_key(self._folder, part),
            "orders": json.dumps(orders),
            "dtypes": json.dumps(_input_dtypes(module)),
        }
        stored = {name: _in_order(tensor, orders.get(name)) for name, tensor in tensors.items()}
        _write(self._folder / _file_name(part), stored, metadata, self._make_room)
        if device.type == "cpu":
            _fill(module, self._folder, part, device)


def _file_name(part: PreparedPart) -> str:
    return f"{part.stem}.safetensors"


def _file_key(folder: Path, part: PreparedPart) -> str:
    """Return the key stored in a file; the name of the copy's folder identifies its source files."""
    return f"{folder.name}/{part.key}"


def _fill(module: nn.Module, folder: Path, part: PreparedPart, device: torch.device) -> None:
    file = folder / _file_name(part)
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    with safe_open(file, framework="pt") as reader:
        metadata = reader.metadata() or {}
        if metadata.get("key") != _file_key(folder, part):
            raise NotPrepared(f"{file.name} is of other weights, or of another version of this package")
        orders, dtypes = json.loads(metadata["orders"]), json.loads(metadata["dtypes"])
        if device.type == "cuda":
            tensors = _read_all(file, shapes, device)
        else:
            tensors = {name: reader.get_tensor(name) for name in shapes}
        found = {name: _in_shape(tensors[name], shape, orders.get(name)) for name, shape in shapes.items()}
    for name, tensor in found.items():
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, nn.Parameter(tensor, requires_grad=False))
    for name, dtype in dtypes.items():
        layer = module.get_submodule(name)
        assert isinstance(layer, QuantizedLinear)
        layer.dtype = getattr(torch, dtype)


def _read_all(file: Path, names: Collection[str], device: torch.device) -> dict[str, Tensor]:
    """Read tensors to a CUDA device."""
    stored = {name: tensor for name, tensor in stored_tensors(file).items() if name in names}
    tensors = {
        name: torch.empty(each.shape, dtype=_DTYPES[each.dtype], device=device)
        for name, each in stored.items()
    }
    spans = [ByteRange(file, stored[name].offset, bytes_of(tensor)) for name, tensor in tensors.items()]
    read_to_device(spans, device)
    return tensors


def _input_dtypes(module: nn.Module) -> dict[str, str]:
    """Return the input dtypes of quantized layers, which do not follow from their weights."""
    layers = ((name, each) for name, each in module.named_modules() if isinstance(each, QuantizedLinear))
    return {name: str(layer.dtype).removeprefix("torch.") for name, layer in layers}


def _order(tensor: Tensor) -> list[int] | None:
    """Return the dimensions in the order of a dense tensor's memory; `None` for that of its shape."""
    if tensor.stride() == torch.empty(tensor.shape, device="meta").stride():
        return None  # `is_contiguous` ignores dimensions of one, whose strides kernels look at
    strides = tensor.stride()
    return sorted(range(len(strides)), key=lambda dim: strides[dim], reverse=True)


def _in_order(tensor: Tensor, order: Sequence[int] | None) -> Tensor:
    return (tensor if order is None else tensor.permute(*order)).contiguous()


def _in_shape(tensor: Tensor, shape: torch.Size, order: Sequence[int] | None) -> Tensor:
    """Undo `_in_order`: the same memory, with the strides that it had."""
    if order is not None:
        tensor = tensor.permute(*(order.index(dim) for dim in range(len(order))))
    if tensor.shape != shape:
        raise NotPrepared(f"a tensor has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    return tensor


def _write(
    file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], make_room: Callable[[int], None]
) -> None:
    """Write a safetensors file in which every tensor begins at a multiple of 64 bytes."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, tensor in tensors.items():
        entries[name] = _entry(_CODES[tensor.dtype], tensor.shape, offset, tensor.nbytes)
        offset += tensor.nbytes
        if rest := -offset % _ALIGNMENT:  # the format allows no gaps: what fills them is a tensor too
            entries[f"{_PADDING}{name}"] = _entry("U8", (rest,), offset, rest)
            offset += rest
    header = json.dumps(entries).encode()
    header += b" " * (-(len(header) + 8) % _ALIGNMENT)
    make_room(8 + len(header) + offset)
    with file.open("xb", buffering=0) as opened:
        os.posix_fallocate(
            opened.fileno(), 0, 8 + len(header) + offset
        )  # a full disk is told before the work
        opened.write(len(header).to_bytes(8, "little") + header)
        for name, tensor in tensors.items():
            opened.seek(8 + len(header) + entries[name]["data_offsets"][0])
            _write_all(opened, memoryview(_bytes_of(tensor)))


def _entry(code: str, shape: Sequence[int], offset: int, num_bytes: int) -> dict[str, Any]:
    return {"dtype": code, "shape": list(shape), "data_offsets": [offset, offset + num_bytes]}


def _bytes_of(tensor: Tensor) -> Any:
    return tensor.cpu().flatten().view(torch.uint8).numpy()


def _write_all(opened: Any, content: memoryview) -> None:
    while content:
        content = content[opened.write(content) :]
