"""Numbers of GGUF files as tensors, a chunk of blocks at a time.

Blocks are dequantized by the package `gguf`, whose numpy code takes less time than the same in torch.
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.extras import Extra
from diffuserve.domain.models.quantization import SMALL_GROUP, Quantization
from diffuserve.models.checkpoint_files.gguf_header import GgufTensor
from diffuserve.models.layers.quantized.quantization import (
    QuantizedWeight,
    pack_groups,
    quantize_weight,
)
from diffuserve.models.weights.device_reader import bytes_of, read_at

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_CHUNK = 256 * 1024  # weights whose blocks are dequantized at a time: 1 MiB in float32, as a cache holds
_REMEDY = Extra.DIFFUSERS.remedy


def read_tensor(path: Path, tensor: GgufTensor) -> Tensor:
    """Return a tensor in memory of its own, blocks dequantized. Raise `InvalidModel` if it cannot be read."""
    result = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
    if tensor.is_plain:
        _read_at(path, tensor.offset, bytes_of(result).numpy())
        return result
    flat = result.view(-1)
    for blocks, start, stop in _chunks(path, tensor):
        flat[start:stop] = dequantize(blocks, tensor.type.name)
    return result


def read_quantized(path: Path, tensor: GgufTensor) -> QuantizedWeight:
    """Return a matrix in the few bits of our layers, in groups of 32. Raise `InvalidModel` as above.

    Blocks of 4 bits keep their codes, and so does Q8_0; the others become the nearest 8-bit integers.
    """
    weight = _empty(tensor)
    for blocks, start, stop in _chunks(path, tensor):
        part = _quantized(torch.from_numpy(blocks), tensor.type.name)
        for name, whole in weight.tensors.items():
            by_group = whole.view(-1, whole.numel() * SMALL_GROUP // prod(tensor.shape))
            by_group[start // SMALL_GROUP : stop // SMALL_GROUP] = part.tensors[name].reshape(
                -1, by_group.shape[1]
            )
    return weight


def dequantize(blocks: Bytes, kind: str) -> Tensor:
    """Return the weights of blocks one after the other, in float32."""
    gguf = _library()
    with np.errstate(all="ignore"):  # a scale may be infinite, and so are its weights then
        # As one row: the library takes sixteen at a time, which would be sixteen blocks.
        weights = gguf.dequantize(blocks.reshape(1, -1), gguf.GGMLQuantizationType[kind])
    return torch.from_numpy(weights).flatten()


def _empty(tensor: GgufTensor) -> QuantizedWeight:
    """Return memory for a weight."""
    rows, columns = tensor.shape
    scale = torch.empty(rows, columns // SMALL_GROUP, dtype=torch.float16)
    if tensor.keeps_4_bits:
        codes = torch.empty(rows, columns // 2, dtype=torch.uint8)
        return QuantizedWeight(codes, scale, torch.empty_like(scale))
    return QuantizedWeight(torch.empty(rows, columns, dtype=torch.int8), scale)


def _quantized(blocks: Tensor, kind: str) -> QuantizedWeight:
    """Return blocks, a row for each, as a weight."""
    match kind:
        case "Q8_0":
            return QuantizedWeight(blocks[:, 2:].view(torch.int8), blocks[:, :2].view(torch.float16))
        case "Q4_0":
            scale = blocks[:, :2].view(torch.float16)
            return QuantizedWeight(blocks[:, 2:], scale, -8 * scale)
        case "Q4_1":
            scales = blocks[:, :4].view(torch.float16)
            return QuantizedWeight(blocks[:, 4:], scales[:, :1], scales[:, 1:])
        case "Q4_K":
            return _quantized_4k(blocks)
    weights = dequantize(blocks.numpy(), kind).view(1, -1)
    return quantize_weight(weights, Quantization.INT8, SMALL_GROUP)


def _quantized_4k(blocks: Tensor) -> QuantizedWeight:
    """Return Q4_K: eight groups share two scales, by which their own scales of 6 bits are multiplied."""
    shared = blocks[:, :4].view(torch.float16).float()
    stored = _library().Q4_K.get_scale_min(blocks[:, 4:16].numpy())
    scales, minima = (torch.from_numpy(each).float() for each in stored)
    pairs = blocks[:, 16:].unflatten(1, (4, SMALL_GROUP))  # a group low, the next one high
    codes = torch.stack([pairs & 0x0F, pairs >> 4], dim=2).flatten(1, 2)
    scale, zero = shared[:, :1] * scales, shared[:, 1:] * -minima
    return QuantizedWeight(pack_groups(codes), scale.half(), zero.half())


def _chunks(path: Path, tensor: GgufTensor) -> Iterator[tuple[Bytes, int, int]]:
    """Yield a tensor's blocks, a row for each, and from where to where their weights are in it."""
    size = _CHUNK // tensor.type.weights
    num_blocks = tensor.num_bytes // tensor.type.num_bytes
    for first in range(0, num_blocks, size):
        last = min(first + size, num_blocks)
        blocks: Bytes = np.empty((last - first, tensor.type.num_bytes), dtype=np.uint8)
        _read_at(path, tensor.offset + first * tensor.type.num_bytes, blocks.reshape(-1))
        yield blocks, first * tensor.type.weights, last * tensor.type.weights


def _read_at(path: Path, offset: int, content: Bytes) -> None:
    """Fill memory with a file's bytes. Raise `InvalidModel` if it cannot be read."""
    try:
        with path.open("rb", buffering=0) as opened:
            is_whole = read_at(opened.fileno(), content.data, offset)
    except OSError as error:
        raise InvalidModel(f"{path}: cannot be read ({error.strerror})") from error
    if not is_whole:
        raise InvalidModel(
            f"{path}: ends before byte {offset + len(content):,}; it was whole when it was opened"
        )


def _library() -> Any:
    """Return the module that knows the formats of blocks. Raise `InvalidModel` if it is not installed."""
    try:
        from gguf import quants
    except ImportError:
        raise InvalidModel(f"GGUF files are read by gguf, which is not installed; {_REMEDY}") from None
    return quants
