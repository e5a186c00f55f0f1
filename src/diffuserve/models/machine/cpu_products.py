"""Products that oneDNN computes on CPUs, and whether it does so on this one.

What a CPU can do is found by trying each kind once: an environment variable, a hypervisor or a build of torch
may take away what the processor's flags promise.
"""

import math
from functools import cache

import torch
from torch import Tensor

from diffuserve.models.machine.host import one_thread

U8_ZERO = 128
"""The unsigned byte that stands for 0 among activations of 8 bits."""

_GELU_SLOPE = torch.tensor(2 * math.sqrt(2 / math.pi))
_GELU_CUBE = 2 * math.sqrt(2 / math.pi) * 0.044715
_SIDE = 64  # of the square products that are tried
_REFUSALS = (
    RuntimeError,
    AttributeError,
)  # errors of CPUs without support, and of torch without oneDNN


def cpu_has_bf16() -> bool:
    """Return whether products in bf16 are faster than in float32 on this CPU.

    oneDNN must take them, and the processor have instructions for them: without, they are emulated. Their
    speed is not tried, since then the default dtype would depend on the machine's load.
    """
    is_x86 = torch.cpu._is_avx2_supported()  # on other CPUs oneDNN uses bf16 only with instructions for it
    return takes_products(torch.bfloat16) and (not is_x86 or torch.cpu._is_avx512_bf16_supported())


@cache
def takes_products(dtype: torch.dtype) -> bool:
    """Return whether `linear` and `linear_gelu` take this dtype on this CPU."""
    x, bias = (torch.ones(shape, dtype=dtype) for shape in ((1, _SIDE), (_SIDE,)))
    try:
        with one_thread():
            linear_gelu(x, x.expand(_SIDE, _SIDE).contiguous(), bias)
    except _REFUSALS:
        return False
    return True


def fuses_gelu(dtype: torch.dtype) -> bool:
    """Return whether `linear_gelu` is faster on this CPU than `linear` and `gelu_`."""
    is_wide = dtype != torch.float32 or torch.backends.cpu.get_cpu_capability() == "AVX512"
    return is_wide and takes_products(dtype)


@cache
def cpu_has_int8() -> bool:
    """Return whether `int8_product` is exact on this CPU.

    Without instructions for it (VNNI) oneDNN adds pairs of products in 16 bits, where the largest overflow.
    """
    codes = torch.full((_SIDE, _SIDE), 127, dtype=torch.int8)
    largest = torch.full((1, _SIDE), 255, dtype=torch.uint8)
    try:
        with one_thread():
            y = int8_product(largest, torch.ops.onednn.qlinear_prepack(codes, None), torch.ones(_SIDE))
    except _REFUSALS:
        return False
    return bool((y == (255 - U8_ZERO) * 127 * _SIDE).all())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b as an operation of oneDNN, for a dtype that `takes_products` takes.

    In float32 torch's own is MKL's, which on processors of AMD uses no instructions of 512 bits: it takes
    2.3 times as long there, and a tenth longer where there are none.
    """
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


def gelu_(y: Tensor) -> Tensor:
    """Replace float32 values by the tanh approximation of their GELU.

    (1 + tanh u) / 2 is the sigmoid of 2u, whose kernel takes a fifth of the time of that of tanh.
    """
    twice_u = torch.addcmul(_GELU_SLOPE, y, y, value=_GELU_CUBE).mul_(y)
    return y.mul_(twice_u.sigmoid_())


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the tanh approximation of GELU of x Wᵀ + b, as one operation of oneDNN.

    Raise `RuntimeError` for a dtype that oneDNN does not take on this CPU.
    """
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], "tanh")
    return result


def int8_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Return (x - `U8_ZERO`) Wᵀ in float32 with each column times its `scale`, as one operation of oneDNN.

    `x` are unsigned bytes of shape (rows, in): oneDNN has fast kernels for them on all CPUs with VNNI.
    `weight` are signed bytes, arranged by `qlinear_prepack`.
    """
    y: Tensor = torch.ops.onednn.qlinear_pointwise(
        x,
        1.0,
        U8_ZERO,
        weight,
        scale,
        torch.zeros(len(scale), dtype=torch.int32),
        None,
        1.0,
        0,
        torch.float32,
        "none",
        [],
        "",
    )
    return y
