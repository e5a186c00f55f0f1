"""Stage `kernels`: attention, fused kernels and quantized products beside plain formulas in float64.

A finding is |out - reference| / |reference| over random inputs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.stages.finding import CUDA, DTYPES, Finding, Findings, Setting
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.layers import fused_ops
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.quantized.quantization import quantize_tokens
from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear
from diffuserve.models.layers.segments import CrossSegments, Segments

_MAX_ERROR = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 2e-3}
_EPS = 1e-6


@dataclass(frozen=True)
class _Shapes:
    """Tokens of sequences that share a step, and the widths of a model."""

    lengths: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int
    dim: int
    out_features: int

    @property
    def width(self) -> int:
        return self.heads * self.dim


_FLUX_1 = _Shapes((4336, 512, 512, 77, 1), (512, 64, 64, 7, 1), heads=24, dim=128, out_features=12288)
_TINY = _Shapes((20, 7, 7, 1), (9, 3, 3, 1), heads=2, dim=16, out_features=64)


def kernels(setting: Setting) -> Findings:
    shapes = _TINY if setting.is_pretended else _FLUX_1
    with setting.cuda(), torch.inference_mode():
        for name, dtype in DTYPES.items():
            yield from _attention(shapes, name, dtype)
        yield from _fused(shapes)
        yield from _products(shapes)


def _attention(shapes: _Shapes, name: str, dtype: torch.dtype) -> Findings:
    kernel = choose_kernel(CUDA, dtype)
    qkv = _draw(dtype, sum(shapes.lengths), 3, shapes.heads, shapes.dim)
    attended = kernel(qkv, Segments.of(shapes.lengths, CUDA))
    query, key, value = (part.split(shapes.lengths) for part in qkv.unbind(1))
    yield _compared(f"{kernel.name} {name}", attended, _softmax_attention(query, key, value))
    # Padding is one key after those of each sequence, which attends to it as often as it was padded.
    padding = [3] * len(shapes.keys)
    key_value = _draw(dtype, sum(shapes.keys) + len(shapes.keys), 2, shapes.heads, shapes.dim)
    query = _draw(dtype, sum(shapes.lengths), shapes.heads, shapes.dim)
    crossed = kernel.cross(query, key_value, CrossSegments.of(shapes.lengths, shapes.keys, padding, CUDA))
    rows = key_value.split([count + 1 for count in shapes.keys])
    padded = [torch.cat([row, row[-1:], row[-1:]]).unbind(1) for row in rows]
    expected = _softmax_attention(query.split(shapes.lengths), *zip(*padded, strict=True))
    yield _compared(f"{kernel.name} across, {name}", crossed, expected)


def _softmax_attention(query: Sequence[Tensor], key: Sequence[Tensor], value: Sequence[Tensor]) -> Tensor:
    outputs = []
    for own in zip(query, key, value, strict=True):
        # Head by head: scores of a large image in float64 have gigabytes.
        heads = [
            torch.softmax(q @ k.T / math.sqrt(q.shape[-1]), dim=-1) @ v
            for q, k, v in zip(*(part.double().unbind(1) for part in own), strict=True)
        ]
        outputs.append(torch.stack(heads, dim=1))
    return torch.cat(outputs)


def _fused(shapes: _Shapes) -> Findings:
    if not fused_ops.is_fused(torch.ones(1, device=CUDA)):
        yield Finding("fused kernels", "not run: Triton does not start kernels here")
        return
    for name, dtype in DTYPES.items():
        for kernel, operands, out in _fused_cases(shapes, dtype):
            on_host = [value.cpu() if isinstance(value, Tensor) else value for value in operands]
            expected = getattr(fused_ops, kernel)(*_in_float32(on_host), out=out.float().cpu())
            got = getattr(torch.ops.diffuserve, kernel)(*operands, out=out)
            yield _compared(f"{kernel} {name}", got, expected.to(CUDA))


def _fused_cases(shapes: _Shapes, dtype: torch.dtype) -> Sequence[tuple[str, tuple[Any, ...], Tensor]]:
    rows, owners = 512, 3
    x, change = (_draw(dtype, rows, shapes.width) for _ in range(2))
    scale, shift, gate = (_draw(dtype, owners, shapes.width) for _ in range(3))
    owner = torch.randint(0, owners, (rows,)).to(CUDA)
    qkv = _draw(dtype, rows, 3, shapes.heads, shapes.dim)
    norms = [_draw(dtype, shapes.dim) for _ in range(2)]
    angle = 9 * torch.randn(rows, shapes.dim // 2)
    rotation = torch.view_as_real(torch.polar(torch.ones_like(angle), angle)).to(CUDA)
    places = torch.randperm(rows).to(CUDA)
    rows_out, wide = torch.full_like(x, math.nan), _draw(dtype, rows, 2 * shapes.width)
    return [
        ("norm_modulated", (x, scale, shift, owner, _EPS), rows_out.clone()),
        ("rms_norm_modulated", (x, scale[0], shift, owner, _EPS), rows_out.clone()),
        ("add_gated", (x, gate, change, owner, None, _EPS), rows_out.clone()),
        ("add_gated", (x, gate, change, owner, scale[0], _EPS), rows_out.clone()),
        ("silu_gated", (wide,), rows_out.clone()),
        ("prepare_qkv", (qkv, *norms, rotation, places, _EPS), torch.full_like(qkv, math.nan)),
    ]


def _in_float32(operands: Sequence[Any]) -> list[Any]:
    return [v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for v in operands]


def _products(shapes: _Shapes) -> Findings:
    """Compare with the same codes multiplied in float64: what the kernel adds, not what quantizing costs."""
    for kind in (Quantization.INT8, Quantization.FP8):
        plain = nn.Linear(shapes.width, shapes.out_features).to(CUDA, torch.bfloat16)
        layer = QuantizedLinear(plain, kind, is_weight_only=False)
        weight = layer.quantized
        exact = weight.codes.to(torch.float32).double() * weight.scale.double()[:, None]
        layer.prepare()
        for rows in (1, 17, sum(shapes.lengths)):
            x = _draw(torch.bfloat16, rows, shapes.width)
            codes, scale = quantize_tokens(x, kind)
            expected = (codes.float().double() * scale.double()) @ exact.T + plain.bias.double()
            name = f"{type(layer._product_of).__name__}, {rows} rows"
            try:
                yield _compared(name, layer(x), expected)
            except (RuntimeError, NotImplementedError) as error:
                yield Finding.failure(name, error)


def _draw(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape).to(dtype).to(CUDA)


def _compared(what: str, got: Tensor, expected: Tensor) -> Finding:
    error = float((got.double() - expected.double()).norm() / expected.double().norm())
    return Finding(what, f"{error:.1e}", ok=error <= _MAX_ERROR[got.dtype])
