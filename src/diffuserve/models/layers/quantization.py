"""Weights and activations in 8 and 4 bits: the arithmetic, without any kernel.

Scales of activations are by token: with one for a whole batch an image would depend on its neighbors. Weights
have a scale for each row in 8 bits, and for each group of a row in 4 bits.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from diffuserve.domain.models.quantization import Quantization

GROUP = 64  # numbers that share a scale in 4 bits
INT8_MAX, FP8_MAX = 127.0, 448.0
STORED_DTYPES = {
    Quantization.INT8: torch.int8,
    Quantization.FP8: torch.float8_e4m3fn,
    Quantization.INT4: torch.uint8,
}
"""Dtypes of codes; in 4 bits a byte holds two."""

_LEVELS = 15  # steps between the lowest and the highest number of 4 bits
_MIN_SCALE = 1e-30  # the scale of rows of zeros
_FP8_IN_BF16 = 2.0**120  # the ratio of the two formats' smallest exponents


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight of `out` rows: codes, with the scales and zeros that decode them.

    In 8 bits `scale` has a number for each row. In 4 bits it has one for each group, and so has `zero`, which
    is the value of code 0.
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
        if zero is not None:
            groups = (len(codes), codes.shape[1] * 2 // GROUP)
            if not tuple(scale.shape) == tuple(zero.shape) == groups or codes.shape[1] % (GROUP // 2):
                raise ValueError(f"scales must be of shape {groups}")
            return cls(codes, scale, zero)
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

    def rows(self, start: int, stop: int) -> "QuantizedWeight":
        """Return some rows of the weight."""
        zero = None if self.zero is None else self.zero[start:stop]
        return QuantizedWeight(self.codes[start:stop], self.scale[start:stop], zero)

    def unpacked(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        """Return the weight that the codes stand for."""
        if self.zero is not None:
            return _unpack_groups(self.codes, self.scale, self.zero, dtype)
        codes = unpack_fp8(self.codes) if self.kind is Quantization.FP8 else self.codes
        return (codes.to(dtype) * self.scale[:, None]).to(dtype)


def can_quantize(kind: Quantization, in_features: int) -> bool:
    """Return whether a weight of that many inputs can have this kind: groups must not cross rows."""
    return kind is not Quantization.INT4 or in_features % GROUP == 0


def quantize_weight(weight: Float[Tensor, "out in"], kind: Quantization) -> QuantizedWeight:
    """Return the nearest weight of this kind; `kind` must not be `NONE`."""
    if kind is Quantization.INT4:
        return _quantize_groups(weight.float())
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


def _quantize_groups(weight: Float[Tensor, "out in"]) -> QuantizedWeight:
    grouped = weight.unflatten(1, (-1, GROUP))
    lowest, highest = grouped.amin(dim=-1), grouped.amax(dim=-1)
    # Codes are computed for the scales as they are stored.
    scale = ((highest - lowest) / _LEVELS).clamp_min(_MIN_SCALE).to(torch.bfloat16)
    zero = lowest.to(torch.bfloat16)
    codes = ((grouped - zero[..., None].float()) / scale[..., None].float()).round_().clamp_(0, _LEVELS)
    return QuantizedWeight(_pack(codes.to(torch.uint8)), scale, zero)


def _pack(codes: UInt8[Tensor, "out groups group"]) -> UInt8[Tensor, "out half"]:
    """Put two codes into a byte: those of a group's first half low, those of its second half high."""
    low, high = codes.chunk(2, dim=-1)
    return (low | (high << 4)).flatten(1)


def _unpack_groups(codes: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    packed = codes.unflatten(1, (-1, GROUP // 2))
    grouped = torch.cat([packed & 0x0F, packed >> 4], dim=-1).to(dtype)
    return torch.addcmul(zero[..., None].to(dtype), grouped, scale[..., None].to(dtype)).flatten(1)
