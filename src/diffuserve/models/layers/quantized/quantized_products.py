"""Products with quantized weights: the kernels of CPUs and of CUDA devices, and the choice among them.

Every kernel computes a row from that row alone, and integer sums are exact in any order, so rows do not
depend on their neighbors.
"""

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.layers.quantized.quantization import QuantizedWeight, quantize_tokens
from diffuserve.models.machine.cpu_products import U8_ZERO, cpu_has_int8, int8_product

_BLOCK_ROWS = 1024  # rows of a weight that are unpacked at a time
_CUDA_MULTIPLE = 16  # both sides of a weight must be multiples
_CUDA_LEAST_ROWS = 32  # minimum for `torch._int_mm`, which requires more than 16
_FP8_CAPABILITY = (8, 9)


@runtime_checkable
class Product(Protocol):
    """A kernel for x Wᵀ + b."""

    def packed(self, weight: QuantizedWeight) -> Tensor:
        """Return the codes in the order that this kernel reads."""
        ...

    def __call__(
        self, x: Float[Tensor, "rows in"], weight: QuantizedWeight, bias: Tensor | None
    ) -> Float[Tensor, "rows out"]: ...


class UnpackedProduct:
    """Unpacks the weight block by block at each use: it saves memory, and takes longer than a plain product.

    Activations stay as they are.
    """

    def packed(self, weight: QuantizedWeight) -> Tensor:
        return weight.codes

    def __call__(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        num_rows = len(weight.codes)
        result = x.new_empty(len(x), num_rows)
        for start in range(0, num_rows, _BLOCK_ROWS):
            block = slice(start, min(start + _BLOCK_ROWS, num_rows))
            part = weight.rows(block.start, block.stop).unpacked(x.dtype)
            result[:, block] = F.linear(x, part, None if bias is None else bias[block])
        return result


class OneDnnProduct:
    """Multiplies 8-bit integers on a CPU."""

    def packed(self, weight: QuantizedWeight) -> Tensor:
        return torch.ops.onednn.qlinear_prepack(weight.codes, None)

    def __call__(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        codes, scale = quantize_tokens(x, Quantization.INT8)
        unsigned = codes.to(torch.int16).add_(U8_ZERO).to(torch.uint8)
        y = int8_product(unsigned, weight.codes, weight.scale)
        return _scaled(y, scale, bias).to(x.dtype)


class CudaIntProduct:
    """Multiplies 8-bit integers on a CUDA device."""

    def packed(self, weight: QuantizedWeight) -> Tensor:
        return weight.codes

    def __call__(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        padded = F.pad(x, (0, 0, 0, max(0, _CUDA_LEAST_ROWS - len(x))))
        codes, scale = quantize_tokens(padded, Quantization.INT8)
        y = torch._int_mm(codes, weight.codes.t()).float().mul_(weight.scale)
        return _scaled(y, scale, bias).to(x.dtype).narrow(0, 0, len(x))


class CudaFp8Product:
    """Multiplies 8-bit floating-point numbers on a CUDA device."""

    def packed(self, weight: QuantizedWeight) -> Tensor:
        return weight.codes

    def __call__(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        codes, scale = quantize_tokens(x, Quantization.FP8)
        y = torch._scaled_mm(
            codes, weight.codes.t(), scale, weight.scale.unsqueeze(0), out_dtype=torch.bfloat16
        )
        return (y if bias is None else y + bias).to(x.dtype)


def choose_product(weight: QuantizedWeight, is_weight_only: bool, device: torch.device) -> Product:
    """Return the kernel for a weight on a device."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if weight.kind is Quantization.INT8 and weight.group is not None:
        return UnpackedProduct()  # sums of integers cannot be scaled by the groups of their terms
    kernel = product_for(weight.kind, tuple(weight.codes.shape), is_weight_only, capability, cpu_has_int8())
    return kernel()


def product_for(
    kind: Quantization,
    shape: tuple[int, ...],
    is_weight_only: bool,
    capability: tuple[int, int] | None,
    has_int8: bool,
) -> type[Product]:
    """Return the kernel for codes of `shape`; `capability` is that of a CUDA device, `None` on a CPU.

    `has_int8` says that a CPU multiplies 8-bit integers exactly.
    """
    if is_weight_only or kind is Quantization.INT4:
        return UnpackedProduct
    if capability is None:
        return OneDnnProduct if kind is Quantization.INT8 and has_int8 else UnpackedProduct
    if any(side % _CUDA_MULTIPLE for side in shape):
        return UnpackedProduct
    if kind is Quantization.INT8:
        return CudaIntProduct
    return CudaFp8Product if capability >= _FP8_CAPABILITY else UnpackedProduct


def _scaled(y: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    y.mul_(scale)
    return y if bias is None else y.add_(bias)
