"""Linear layers of quantized weights: the formula, their neighbors, and the choice of kernels."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.layers.linear import Linear, Tiling
from diffuserve.models.layers.quantized.quantization import (
    STORED_DTYPES,
    QuantizedWeight,
    quantize_tokens,
    quantize_weight,
)
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear, input_dtype, quantize_layers
from diffuserve.models.layers.quantized.quantized_products import (
    CudaFp8Product,
    CudaIntProduct,
    OneDnnProduct,
    Product,
    UnpackedProduct,
    product_for,
)
from diffuserve.models.machine.cpu_products import cpu_has_int8

NONE, INT8, FP8, INT4 = Quantization
KINDS = [INT8, FP8, INT4]
IN, OUT = 192, 1088  # more rows than are unpacked at a time
ALL = QuantizedLayers(".*")


def make_layer(
    kind: Quantization,
    dtype: torch.dtype = torch.float32,
    *,
    gelu: bool = False,
    tiling: Tiling | None = None,
    is_weight_only: bool = False,
) -> QuantizedLinear:
    generator = torch.Generator().manual_seed(0)
    layer = Linear(IN, OUT, gelu=gelu)
    layer.weight.data = (torch.randn(OUT, IN, generator=generator) / IN**0.5).to(dtype)
    layer.bias = nn.Parameter((torch.randn(OUT, generator=generator) / 10).to(dtype), requires_grad=False)
    layer.tiling = tiling
    quantized = QuantizedLinear(layer, kind, is_weight_only)
    quantized.prepare()
    return quantized


def make_rows(num_rows: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(num_rows, IN, generator=torch.Generator().manual_seed(seed)).to(dtype)


def reference(kind: Quantization, x: Tensor, dtype: torch.dtype, gelu: bool, is_weight_only: bool) -> Tensor:
    """Compute the layer in float64 from codes and scales."""
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(OUT, IN, generator=generator) / IN**0.5).to(dtype)
    bias = (torch.randn(OUT, generator=generator) / 10).to(dtype)
    back = quantize_weight(weight, kind).unpacked(torch.float32).double()
    x = x.double()
    if kind is INT8 and not is_weight_only and cpu_has_int8():
        codes, scale = quantize_tokens(x, INT8)
        x = codes.double() * scale
    y = F.linear(x, back, bias.double())
    return F.gelu(y, approximate="tanh") if gelu else y


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_weight_only", [False, True])
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("num_rows", [1, 40, 200])
def test_the_product_equals_the_formula(
    dtype: torch.dtype, tolerance: float, kind: Quantization, is_weight_only: bool, gelu: bool, num_rows: int
) -> None:
    layer = make_layer(kind, dtype, gelu=gelu, tiling=Tiling(64, 32), is_weight_only=is_weight_only)
    x = make_rows(num_rows, dtype)
    y = layer(x)
    assert (y.dtype, tuple(y.shape)) == (dtype, (num_rows, OUT))
    expected = reference(kind, x, dtype, gelu, is_weight_only)
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_in_fixed_tiles_a_row_is_the_same_to_the_bit_beside_any_neighbors(
    dtype: torch.dtype, kind: Quantization
) -> None:
    layer, x = make_layer(kind, dtype, tiling=Tiling(16, 16)), make_rows(9, dtype)
    alone = layer(x)
    for num_before in (1, 7, 50):
        others = 1000 * make_rows(num_before, dtype, seed=2)
        assert torch.equal(layer(torch.cat([others, x]))[num_before:], alone)


@pytest.mark.parametrize("kind", [INT8, INT4])
def test_a_weight_in_small_groups_is_multiplied_as_it_is(kind: Quantization) -> None:
    layer, x = make_layer(INT4), make_rows(40)
    weight = quantize_weight(torch.randn(OUT, IN, generator=torch.Generator().manual_seed(3)), kind, 32)
    layer.keep(weight)
    layer.prepare()
    torch.testing.assert_close(layer(x), F.linear(x, weight.unpacked(torch.float32), layer.bias))


def test_leading_axes_are_kept_and_a_bias_may_be_missing() -> None:
    plain = Linear(IN, OUT, bias=False)
    plain.weight.data = make_rows(OUT) / IN**0.5
    layer = QuantizedLinear(plain, INT8, is_weight_only=True)
    layer.prepare()
    x = make_rows(6).unflatten(0, (2, 3))
    assert layer(x).shape == (2, 3, OUT)
    torch.testing.assert_close(layer(x), F.linear(x, plain.weight), rtol=0, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_tells_the_dtype_that_it_reads(dtype: torch.dtype) -> None:
    assert input_dtype(make_layer(FP8, dtype)) is dtype
    assert input_dtype(nn.Linear(2, 2, dtype=dtype)) is dtype


def test_a_kernel_keeps_no_second_copy_of_the_weight() -> None:
    layer = make_layer(INT8, torch.bfloat16)
    assert sum(tensor.nbytes for tensor in layer.parameters()) < 1.05 * IN * OUT


def test_layers_of_a_loaded_module_are_replaced_by_their_full_names() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64), nn.Linear(32, 8)))
    x = torch.randn(3, 64)
    before = module[:1](x)
    quantize_layers(module, QuantizedLayers(r"0|1\.1"), INT4)
    assert isinstance(module[0], QuantizedLinear)
    assert type(module.get_submodule("1.0")) is nn.Linear
    assert type(module.get_submodule("1.1")) is nn.Linear, "its rows hold no whole group"
    torch.testing.assert_close(module[:1](x), before, rtol=0, atol=0.3)


def test_none_leaves_a_module_as_it_is() -> None:
    module = nn.Sequential(nn.Linear(64, 64))
    quantize_layers(module, ALL, NONE)
    assert type(module[0]) is nn.Linear


HOPPER, AMPERE = (9, 0), (8, 0)


@pytest.mark.parametrize(
    ("kind", "shape", "is_weight_only", "capability", "has_int8", "kernel"),
    [
        (INT8, (768, 192), False, None, True, OneDnnProduct),
        (INT8, (768, 192), False, None, False, UnpackedProduct),
        (INT8, (768, 192), True, None, True, UnpackedProduct),
        (FP8, (768, 192), False, None, True, UnpackedProduct),
        (INT8, (768, 192), False, AMPERE, True, CudaIntProduct),
        (INT8, (768, 200), False, AMPERE, True, UnpackedProduct),
        (FP8, (768, 192), False, AMPERE, True, UnpackedProduct),
        (FP8, (768, 192), False, HOPPER, True, CudaFp8Product),
        (FP8, (760, 192), False, HOPPER, True, UnpackedProduct),
        (FP8, (768, 192), True, HOPPER, True, UnpackedProduct),
        (INT4, (768, 96), False, HOPPER, True, UnpackedProduct),
    ],
)
def test_the_kernel_is_chosen_by_kind_shape_and_device(
    kind: Quantization,
    shape: tuple[int, int],
    is_weight_only: bool,
    capability: tuple[int, int] | None,
    has_int8: bool,
    kernel: type[Product],
) -> None:
    assert product_for(kind, shape, is_weight_only, capability, has_int8) is kernel


@pytest.mark.parametrize("num_rows", [1, 16, 17, 1056])
@pytest.mark.parametrize(("kernel", "kind"), [(CudaIntProduct, INT8), (CudaFp8Product, FP8)])
def test_shapes_and_layouts_fit_the_kernels_of_cuda(
    kernel: type[Product], kind: Quantization, num_rows: int
) -> None:
    """Fake tensors know what the operators ask for, and refuse tensors of two devices."""
    with FakeTensorMode(), torch.device("cuda"):
        weight = QuantizedWeight(torch.empty(64, 48, dtype=STORED_DTYPES[kind]), torch.empty(64))
        x, bias = torch.empty(num_rows, 48, dtype=torch.bfloat16), torch.empty(64, dtype=torch.bfloat16)
        y = kernel()(x, weight, bias)
    assert (tuple(y.shape), y.dtype, y.device.type) == ((num_rows, 64), torch.bfloat16, "cuda")
