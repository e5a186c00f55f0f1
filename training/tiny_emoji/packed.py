"""Weights packed for a repository, most in 8 bits: good to go on training from, not to be served."""

import lzma
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

_STEP_OF_RMS = 1 / 14
"""A code's step, in units of its row's root mean square: the error is 2 % of a weight."""
_LEAST = 4096
"""Smaller tensors stay in bf16."""
_SCALE = "scale:"
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 0, "pb": 0}]
_SUFFIX = ".xz"


def pack(source: Path, folder: Path) -> Path:
    """Write the safetensors file `source` packed into `folder`, with its metadata; return the file."""
    tensors: dict[str, Tensor] = {}
    for name, value in load_file(source).items():
        tensors |= encoded(name, value)
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata()
    folder.mkdir(parents=True, exist_ok=True)
    plain, target = folder / f"{source.name}.plain", folder / f"{source.name}{_SUFFIX}"
    save_file(tensors, plain, metadata=metadata)
    target.write_bytes(lzma.compress(plain.read_bytes(), lzma.FORMAT_XZ, filters=_FILTERS))
    plain.unlink()
    return target


def unpack(packed: Path, folder: Path) -> Path:
    """Write what `pack` wrote as a safetensors file into `folder`; return the file."""
    target = folder / packed.name.removesuffix(_SUFFIX)
    target.write_bytes(lzma.decompress(packed.read_bytes()))
    with safe_open(target, framework="pt") as file:
        metadata = file.metadata()
    save_file(decoded(load_file(target)), target, metadata=metadata)
    return target


def encoded(name: str, value: Tensor) -> dict[str, Tensor]:
    """Return the tensors that stand for a weight: codes of 8 bits and a scale for each row, or itself."""
    if value.ndim < 2 or value.numel() < _LEAST:
        return {name: value.to(torch.bfloat16)}
    rows = value.float().flatten(1)
    scale = (rows.square().mean(1, keepdim=True).sqrt() * _STEP_OF_RMS).clamp(min=1e-12)
    scale = torch.maximum(scale, rows.abs().amax(1, keepdim=True) / 127).half().float()
    codes = (rows / scale).round().clamp(-127, 127).to(torch.int8)
    return {name: codes.view_as(value), _SCALE + name: scale[:, 0].half()}


def decoded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that `encoded` tensors stand for."""
    weights = {}
    for name, value in tensors.items():
        scale = tensors.get(_SCALE + name)
        if scale is not None:
            weights[name] = value.float() * scale.float().view(-1, *[1] * (value.ndim - 1))
        elif not name.startswith(_SCALE):
            weights[name] = value.float()
    return weights
