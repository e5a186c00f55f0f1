"""Weights and activations in 8 and 4 bits: the arithmetic, without any kernel.

Scales of activations are by token: with one for a whole batch an image would depend on its neighbors. Weights
have a scale for each row in 8 bits, and for each group of a row in 4 bits. Weights that others quantized may
have scales for groups in 8-bit integers too, and groups of another size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from diffuserve.domain.models.quantization import SMALL_GROUP, Quantization

GROUP = 64  # numbers that share a scale in 4 bits, where this module quantizes
INT8_MAX, FP8_MAX = 127.0, 448.0
STORED_DTYPES = {
    Quantization.INT8: torch.int8,
    Quantization.FP8: torch.float8_e4m3fn,
    Quantization.INT4: torch.uint8,
}
"""Dtypes of codes; in 4 bits a byte holds two."""

_LEVELS = 15  # steps between the lowest and the highest number of 4 bits
_MIN_SCALE = 1e-30  # the scale of rows of zeros
_LEAST_FP16 = 2.0**-24
_FP8_IN_BF16 = 2.0**120  # the ratio of the two formats' smallest exponents


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight of `out` rows: codes, with the scales and zeros that decode them.

    In 8 bits `scale` has a number for each row, or one for each group of a row. In 4 bits it has one for each
    group, and so has `zero`, which is the value of code 0.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None = None

    @classmethod
    def of(cls, codes: Tensor, scale: Tensor, zero: Tensor | None) -> "QuantizedWeight":
        """Return a weight as others store it too: with a last axis of one scale, or one scale for all rows.

        Raise `ValueError` for codes and scales that do not fit.
        """
        kind = next((kind for kind, dtype in STORED_DTYPES.items() if dtype == codes.dtype), None)
        if kind is None or codes.ndim != 2 or not scale.is_floating_point():
            raise ValueError(f"codes of {codes.dtype} and scales of {scale.dtype} are of no known kind")
        if (kind is Quantization.INT4) is not (zero is not None):
            raise ValueError("4 bits, and nothing else, need a zero for each group")
        if group_size(kind, codes.shape, scale.shape) is not None and (
            zero is None or zero.shape == scale.shape
        ):
            return cls(codes, scale, zero)
        if zero is not None:
            raise ValueError(
                f"scales of shape {tuple(scale.shape)} are not for groups of {GROUP} or {SMALL_GROUP}"
            )
        if scale.numel() not in (1, len(codes)):
            raise ValueError(f"{scale.numel()} scales for {len(codes)} rows")
        return cls(codes, scale.float().flatten().expand(len(codes)).contiguous())

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors, by what follows the weight's name in the names of those that are stored."""
        zero = {} if self.zero is None else {"_zero": self.zero}
        return {"": self.codes, "_scale": self.scale, **zero}

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def kind(self) -> Quantization:
        kinds = {dtype: kind for kind, dtype in STORED_DTYPES.items()}
        return kinds[self.codes.dtype]

    @property
    def group(self) -> int | None:
        """Count of numbers that share a scale; `None` for those of a row."""
        return group_size(self.kind, self.codes.shape, self.scale.shape)

    def rows(self, start: int, stop: int) -> "QuantizedWeight":
        """Return some rows of the weight."""
        zero = None if self.zero is None else self.zero[start:stop]
        return QuantizedWeight(self.codes[start:stop], self.scale[start:stop], zero)

    def unpacked(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        """Return the weight that the codes stand for."""
        if self.scale.ndim == 2:
            # Scales in fp16 have three bits more than bf16: rounded once, in the end.
            wide = torch.float16 if (self.scale.dtype, dtype) == (torch.float16, torch.bfloat16) else dtype
            return _unpack_groups(self.codes, self.scale, self.zero, wide).to(dtype)
        codes = unpack_fp8(self.codes) if self.kind is Quantization.FP8 else self.codes
        return (codes.to(dtype) * self.scale[:, None]).to(dtype)


def group_size(kind: Quantization, codes: Sequence[int], scale: Sequence[int]) -> int | None:
    """Return how many numbers of a row share a scale, by the shapes of both; `None` if all do.

    It is `None` too for scales that are not those of groups.
    """
    if kind is Quantization.FP8 or len(codes) != 2 or len(scale) != 2 or codes[0] != scale[0]:
        return None
    if kind is Quantization.INT8 and scale[1] == 1:  # others' way to write one for each row
        return None
    in_features = codes[1] * (2 if kind is Quantization.INT4 else 1)
    return next((size for size in (GROUP, SMALL_GROUP) if scale[1] * size == in_features), None)


def can_quantize(kind: Quantization, in_features: int) -> bool:
    """Return whether a weight of that many inputs can have this kind: groups must not cross rows."""
    return kind is not Quantization.INT4 or in_features % GROUP == 0


def quantize_weight(
    weight: Float[Tensor, "out in"], kind: Quantization, group: int | None = None
) -> QuantizedWeight:
    """Return the nearest weight of this kind; `kind` must not be `NONE`.

    With `group`, that many numbers share a scale; `None` stands for what the kind has by itself.
    """
    if kind is Quantization.INT4:
        return _quantize_groups(weight.float(), group or GROUP)
    if group is not None:
        return _quantize_groups_8(weight.float(), group)
    codes, scale = quantize_tokens(weight, kind)
    return QuantizedWeight(codes, scale.squeeze(1))


def quantize_tokens(
    x: Float[Tensor, "tokens in"], kind: Quantization
) -> tuple[Tensor, Float[Tensor, "tokens 1"]]:
    """Return each token's codes in 8 bits, and its scale, which depends only on its largest value."""
    largest = FP8_MAX if kind is Quantization.FP8 else INT8_MAX
    scale = (x.abs().amax(dim=-1, keepdim=True).float() / largest).clamp_min(_MIN_SCALE)
    scaled = (x / scale).clamp_(-largest, largest)  # a quotient may be rounded up, and fp8 has no infinity
    return (scaled if kind is Quantization.FP8 else scaled.round_()).to(STORED_DTYPES[kind]), scale


def unpack_fp8(codes: Tensor) -> Tensor:
    """Return E4M3 numbers in bf16, exactly.

    Sign, exponent and mantissa are moved to their places in bf16, whose exponents begin 120 lower. On a CPU
    that takes a fraction of torch's own conversion.
    """
    bits = codes.view(torch.uint8).to(torch.int16)
    moved = ((bits & 0x80) << 8) | ((bits & 0x7F) << 4)
    return moved.view(torch.bfloat16).mul(_FP8_IN_BF16)


def _quantize_groups(weight: Float[Tensor, "out in"], group: int) -> QuantizedWeight:
    grouped = weight.unflatten(1, (-1, group))
    lowest, highest = grouped.amin(dim=-1), grouped.amax(dim=-1)
    # Codes are computed for the scales as they are stored.
    scale = ((highest - lowest) / _LEVELS).clamp_min(_MIN_SCALE).to(torch.bfloat16)
    zero = lowest.to(torch.bfloat16)
    codes = ((grouped - zero[..., None].float()) / scale[..., None].float()).round_().clamp_(0, _LEVELS)
    return QuantizedWeight(pack_groups(codes.to(torch.uint8)), scale, zero)


def _quantize_groups_8(weight: Float[Tensor, "out in"], group: int) -> QuantizedWeight:
    """Return 8-bit integers with scales in fp16: those of Q8_0 blocks come back as they were."""
    grouped = weight.unflatten(1, (-1, group))
    scale = (grouped.abs().amax(dim=-1) / INT8_MAX).clamp_min(_LEAST_FP16).to(torch.float16)
    codes = (grouped / scale[..., None].float()).round_().clamp_(-INT8_MAX, INT8_MAX)
    return QuantizedWeight(codes.flatten(1).to(torch.int8), scale)


def pack_groups(codes: UInt8[Tensor, "out groups group"]) -> UInt8[Tensor, "out half"]:
    """Put two codes into a byte: those of a group's first half low, those of its second half high."""
    low, high = codes.chunk(2, dim=-1)
    return (low | (high << 4)).flatten(1)


def _unpack_groups(codes: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor:
    if zero is None:
        grouped = codes.unflatten(1, (scale.shape[1], -1)).to(dtype)
        return grouped.mul_(scale[..., None].to(dtype)).flatten(1)
    packed = codes.unflatten(1, (scale.shape[1], -1))
    grouped = torch.cat([packed & 0x0F, packed >> 4], dim=-1).to(dtype)
    return torch.addcmul(zero[..., None].to(dtype), grouped, scale[..., None].to(dtype)).flatten(1)
