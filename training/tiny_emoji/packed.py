"""Weights packed for a repository, most in 8 bits: good to go on training from, not to be served."""

import lzma

import torch
from safetensors.torch import load, save
from torch import Tensor

FINE, COARSE = 1 / 12, 1 / 6
"""A code's step, in units of its row's root mean square: the error is 2.4 % of a weight, or 4.8 %."""
_LEAST = 4096
"""Smaller tensors stay in bf16."""
_SCALE = "scale:"
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 0, "pb": 0}]


def pack(weights: dict[str, Tensor], step: float = FINE) -> bytes:
    """Return weights as few bytes, in codes of `step`."""
    tensors: dict[str, Tensor] = {}
    for name, value in weights.items():
        tensors |= _encoded(name, value, step)
    return lzma.compress(save(tensors), lzma.FORMAT_XZ, filters=_FILTERS)


def unpack(packed: bytes) -> dict[str, Tensor]:
    """Return nearly the weights that `pack` was given, in float32."""
    tensors, weights = load(lzma.decompress(packed)), {}
    for name, value in tensors.items():
        scale = tensors.get(_SCALE + name)
        if scale is not None:
            weights[name] = value.float() * scale.float().view(-1, *[1] * (value.ndim - 1))
        elif not name.startswith(_SCALE):
            weights[name] = value.float()
    return weights


def _encoded(name: str, value: Tensor, step: float) -> dict[str, Tensor]:
    """Return the tensors that stand for a weight: codes of 8 bits and a scale for each row, or itself."""
    if value.ndim < 2 or value.numel() < _LEAST:
        return {name: value.to(torch.bfloat16).contiguous()}
    rows = value.float().flatten(1)
    scale = (rows.square().mean(1, keepdim=True).sqrt() * step).clamp(min=1e-7)
    scale = torch.maximum(scale, rows.abs().amax(1, keepdim=True) / 127).half()
    codes = (rows / scale.float()).round().clamp(-127, 127).to(torch.int8)
    return {name: codes.view_as(value), _SCALE + name: scale[:, 0].contiguous()}
