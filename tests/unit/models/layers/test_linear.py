"""Linear layers; in fixed tiles a row's result does not depend on its neighbors."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffuserve.models.layers.linear import Linear, Tiling, set_tiling
from support.pretend_cuda import pretend_cuda

DTYPES = [torch.float32, torch.bfloat16]
WIDE, NARROW = 96, 160


def make_linear(
    dtype: torch.dtype = torch.float32, gelu: bool = False, tiling: Tiling | None = None, bias: bool = True
) -> Linear:
    generator = torch.Generator().manual_seed(0)
    layer = Linear(WIDE, NARROW, gelu=gelu, bias=bias)
    layer.weight.data = (torch.randn(NARROW, WIDE, generator=generator) / WIDE**0.5).to(dtype)
    if layer.bias is not None:
        layer.bias.data = (torch.randn(NARROW, generator=generator) / 10).to(dtype)
    layer.tiling = tiling
    return layer


def make_rows(num_rows: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(num_rows, WIDE, generator=torch.Generator().manual_seed(seed)).to(dtype)


def reference(layer: Linear, x: Tensor) -> Tensor:
    """Compute the layer in float64, activation included."""
    bias = None if layer.bias is None else layer.bias.double()
    y = F.linear(x.double(), layer.weight.double(), bias)
    return F.gelu(y, approximate="tanh") if layer.gelu else y


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("tiling", [None, Tiling(16, 16), Tiling(64, 64), Tiling(128, 32)])
@pytest.mark.parametrize("num_rows", [1, 16, 63, 64, 65, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_the_product_equals_the_formula(
    dtype: torch.dtype, tolerance: float, gelu: bool, tiling: Tiling | None, num_rows: int, bias: bool
) -> None:
    layer, x = make_linear(dtype, gelu, tiling, bias), make_rows(num_rows, dtype)
    y = layer(x)
    assert (y.dtype, tuple(y.shape)) == (dtype, (num_rows, NARROW))
    torch.testing.assert_close(y.double(), reference(layer, x), rtol=0, atol=tolerance)


def test_the_fused_bf16_gelu_agrees_with_the_tanh_gelu() -> None:
    layer, plain = make_linear(torch.bfloat16, gelu=True), make_linear(torch.bfloat16)
    x = 3 * make_rows(500, torch.bfloat16)
    unfused = F.gelu(plain(x), approximate="tanh")
    # The fused product rounds once, after the activation, the plain one also before it.
    torch.testing.assert_close(layer(x), unfused, rtol=2**-6, atol=2**-8)
    fused_error, unfused_error = ((y.double() - reference(layer, x)).abs().max() for y in (layer(x), unfused))
    assert fused_error <= unfused_error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize(("tile_rows", "bias"), [(16, True), (16, False), (256, True)])
def test_in_fixed_tiles_a_row_is_bit_equal_with_any_neighbors_at_any_place(
    dtype: torch.dtype, gelu: bool, tile_rows: int, bias: bool
) -> None:
    layer, row = make_linear(dtype, gelu, Tiling(tile_rows, tile_rows), bias), make_rows(1, dtype)
    alone = layer(row)[0]
    for seed, num_rows in enumerate((2, 15, 16, 17, 100, 256, 300)):
        company = 100 * make_rows(num_rows, dtype, seed=seed + 2)
        for place in {0, 1, num_rows // 2, num_rows - 1}:
            company[place] = row[0]
            assert torch.equal(layer(company)[place], alone)
            company[place] = -row[0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("bias", [False, True])
def test_on_cuda_the_activation_is_part_of_the_product_with_its_bias(
    dtype: torch.dtype, tolerance: float, bias: bool
) -> None:
    layer, x = make_linear(dtype, gelu=True, bias=bias), make_rows(20, dtype)
    expected = reference(layer, x)
    with pretend_cuda() as log, torch.no_grad():
        product = layer.to("cuda:0")(x.to("cuda:0")).cpu()
        assert ("_addmm_activation" in log.kernels) is bias
        assert ("gelu_" in log.kernels) is not bias
    torch.testing.assert_close(product.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("bias", [False, True])
def test_the_sum_of_two_products_is_rounded_hardly_more_than_one_product(bias: bool) -> None:
    layer, x = make_linear(torch.bfloat16, bias=bias), make_rows(200, torch.bfloat16)
    parts = x.split([WIDE // 3, WIDE - WIDE // 3], dim=1)
    exact, whole = reference(layer, x), layer(x).double()
    assert torch.equal(layer.of_parts(*parts).double(), whole)
    with pretend_cuda() as log, torch.no_grad():
        layer.to("cuda:0")
        added_up = layer.of_parts(*(part.to("cuda:0") for part in parts)).cpu().double()
        assert "cat" not in log.kernels
    errors = [float((result - exact).square().mean().sqrt()) for result in (added_up, whole)]
    assert errors[0] < 1.3 * errors[1]


def test_a_dozen_shapes_serve_every_number_of_rows() -> None:
    tiling = Tiling(rows=512, tail_rows=64)
    shapes = {(num_rows + tiling.padding(num_rows)) % 512 for num_rows in range(1, 3000)}
    assert shapes == set(range(0, 512, 64))
    assert max(tiling.padding(num_rows) for num_rows in range(1, 3000)) == 63


def test_tiling_reaches_every_linear_inside_a_module() -> None:
    inner, outer = make_linear(), make_linear()
    module = nn.ModuleDict({"outer": outer, "deeper": nn.ModuleList([nn.Identity(), inner])})
    tiling = Tiling(32, 8)
    set_tiling(module, tiling)
    assert (inner.tiling, outer.tiling) == (tiling, tiling)
