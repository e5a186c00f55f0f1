"""Triton kernels of the operations of `fused_ops`; this module is imported only if Triton is installed.

A program works on one token: on its row or a part of it, or on one part of its q, k and v for all heads. It
reads and writes each number once, and computes in float32, so that a result is rounded once. Triton's blocks
have powers of two: what is beyond a row's width is masked. Kernels take tensors as pointers and strides.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

_WIDEST_PART = 4096  # channels of a program that works on a part of a row


def norm_modulated(
    x: Tensor, scale: Tensor, shift: Tensor, owner: Tensor, eps: float, *, out: Tensor
) -> Tensor:
    width = x.shape[1]
    strides = x.stride(0), scale.stride(0), shift.stride(0), out.stride(0)
    with torch.cuda.device_of(out):
        _norm_modulated[(len(x),)](
            x,
            scale,
            shift,
            owner,
            out,
            *strides,
            width,
            eps,
            BLOCK=triton.next_power_of_2(width),
            num_warps=8,
        )
    return out


def rms_norm_modulated(
    x: Tensor, weight: Tensor, scale: Tensor | None, owner: Tensor | None, eps: float, *, out: Tensor
) -> Tensor:
    width = x.shape[1]
    strides = x.stride(0), 0 if scale is None else scale.stride(0), out.stride(0)
    with torch.cuda.device_of(out):
        _rms_norm_modulated[(len(x),)](
            x,
            weight,
            x if scale is None else scale,
            x if owner is None else owner,
            out,
            *strides,
            width,
            eps,
            HAS_SCALE=scale is not None,
            BLOCK=triton.next_power_of_2(width),
            num_warps=8,
        )
    return out


def add_gated(  # noqa: PLR0913 (an operation of torch has tensors for arguments)
    x: Tensor, gate: Tensor, change: Tensor, owner: Tensor, weight: Tensor | None, eps: float, *, out: Tensor
) -> Tensor:
    width = x.shape[1]
    strides = x.stride(0), gate.stride(0), change.stride(0), out.stride(0)
    with torch.cuda.device_of(out):
        _add_gated[(len(x),)](
            x,
            gate,
            change,
            owner,
            x if weight is None else weight,
            out,
            *strides,
            width,
            eps,
            HAS_NORM=weight is not None,
            BLOCK=triton.next_power_of_2(width),
            num_warps=8,
        )
    return out


def silu_gated(both: Tensor, *, out: Tensor) -> Tensor:
    width = out.shape[1]
    block = min(_WIDEST_PART, triton.next_power_of_2(width))
    with torch.cuda.device_of(out):
        _silu_gated[(len(out), triton.cdiv(width, block))](
            both, out, both.stride(0), out.stride(0), width, BLOCK=block, num_warps=8
        )
    return out


def prepare_qkv(  # noqa: PLR0913 (an operation of torch has tensors for arguments)
    qkv: Tensor,
    norm_query: Tensor,
    norm_key: Tensor,
    rotation: Tensor | None,
    places: Tensor | None,
    eps: float,
    *,
    out: Tensor,
) -> Tensor:
    num_tokens, num_parts, num_heads, head_dim = qkv.shape
    with torch.cuda.device_of(out):
        _prepare_qkv[(num_tokens, num_parts)](
            qkv,
            norm_query,
            norm_key,
            qkv if rotation is None else rotation,
            qkv if places is None else places,
            out,
            *qkv.stride()[:3],
            *out.stride()[:3],
            num_heads,
            head_dim,
            eps,
            HAS_ROTATION=rotation is not None,
            HAS_PLACES=places is not None,
            HEADS=triton.next_power_of_2(num_heads),
            DIM=triton.next_power_of_2(head_dim),
        )
    return out


@triton.jit
@no_type_check
def _norm_modulated(  # noqa: PLR0913
    x, scale, shift, owner, out, x_stride, scale_stride, shift_stride, out_stride, width, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    row = tl.load(x + token * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    centerd = tl.where(inside, row - tl.sum(row, 0) / width, 0.0)
    normed = centerd * tl.rsqrt(tl.sum(centerd * centerd, 0) / width + eps)
    sequence = tl.load(owner + token)
    factor = tl.load(scale + sequence * scale_stride + columns, mask=inside, other=0.0).to(tl.float32)
    added = tl.load(shift + sequence * shift_stride + columns, mask=inside, other=0.0).to(tl.float32)
    result = normed * factor + added
    tl.store(out + token * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _rms_norm_modulated(  # noqa: PLR0913
    x, weight, scale, owner, out, x_stride, scale_stride, out_stride, width, eps,
    HAS_SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    row = tl.load(x + token * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    result = row * tl.rsqrt(tl.sum(row * row, 0) / width + eps)
    result *= tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_SCALE:
        sequence = tl.load(owner + token)
        result *= tl.load(scale + sequence * scale_stride + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _add_gated(  # noqa: PLR0913
    x, gate, change, owner, weight, out, x_stride, gate_stride, change_stride, out_stride, width, eps,
    HAS_NORM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    sequence = tl.load(owner + token)
    row = tl.load(x + token * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(gate + sequence * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    added = tl.load(change + token * change_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        added *= tl.rsqrt(tl.sum(added * added, 0) / width + eps)
        added *= tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    result = row + factor * added
    tl.store(out + token * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _silu_gated(both, out, both_stride, out_stride, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    source = both + token * both_stride + columns
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(source + width, mask=inside, other=0.0).to(tl.float32)
    result = gate * tl.sigmoid(gate) * value
    tl.store(out + token * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _prepare_qkv(  # noqa: PLR0913
    qkv, norm_query, norm_key, rotation, places, out,
    token_stride, part_stride, head_stride, out_token_stride, out_part_stride, out_head_stride,
    num_heads, head_dim, eps,
    HAS_ROTATION: tl.constexpr, HAS_PLACES: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    place = token
    if HAS_PLACES:
        place = tl.load(places + token)
    heads = tl.arange(0, HEADS)[:, None]
    channels = tl.arange(0, DIM)[None, :]
    inside = (heads < num_heads) & (channels < head_dim)
    source = qkv + token * token_stride + part * part_stride + heads * head_stride + channels
    target = out + place * out_token_stride + part * out_part_stride + heads * out_head_stride + channels
    values = tl.load(source, mask=inside, other=0.0)
    if part < 2:  # the third are the values, which stay as they are
        wide = values.to(tl.float32)
        wide *= tl.rsqrt(tl.sum(wide * wide, 1) / head_dim + eps)[:, None]
        weight = norm_query
        if part == 1:
            weight = norm_key
        wide *= tl.load(weight + channels, mask=channels < head_dim, other=0.0).to(tl.float32)
        if HAS_ROTATION:
            # Adjacent channels are the two parts of a complex number, and so are those of its rotation.
            turn = tl.load(rotation + token * head_dim + channels, mask=channels < head_dim, other=0.0)
            cos, sin = tl.split(tl.reshape(turn, (1, DIM // 2, 2)))
            real, imaginary = tl.split(tl.reshape(wide, (HEADS, DIM // 2, 2)))
            turned = tl.join(real * cos - imaginary * sin, real * sin + imaginary * cos)
            wide = tl.reshape(turned, (HEADS, DIM))
        values = wide.to(out.dtype.element_ty)
    tl.store(target, values, mask=inside)
