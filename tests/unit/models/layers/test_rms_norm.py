"""The RMS norm with weights against torch's own, scaled by token or by sequence; on CUDA it is one kernel."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diffuserve.models.layers.rms_norm import TokenRmsNorm
from support.pretend_cuda import pretend_cuda

EPS = 1e-5
OWNER = torch.tensor([1, 1, 0, 2, 0])


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_norm(dtype: torch.dtype = torch.float32) -> TokenRmsNorm:
    norm = TokenRmsNorm(24, EPS)
    norm.weight.data = numbers(24, seed=1).to(dtype)
    return norm


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8)])
def test_tokens_are_divided_by_their_rms_and_weighted(dtype: torch.dtype, tolerance: float) -> None:
    norm, x = make_norm(dtype), 3 * numbers(5, 4, 24).to(dtype)
    expected = F.rms_norm(x.double(), (24,), norm.weight.double(), EPS)
    y = norm(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("owner", [None, OWNER], ids=["by token", "by sequence"])
def test_a_factor_of_each_sequence_is_taken_along(owner: Tensor | None) -> None:
    norm, x, scale = make_norm(), numbers(5, 24), numbers(5, 24, seed=2)
    expected = norm(x) * (scale if owner is None else scale[owner])
    torch.testing.assert_close(norm(x, scale, owner), expected)


@pytest.mark.parametrize("is_scaled", [False, True])
def test_on_cuda_it_is_one_kernel(is_scaled: bool) -> None:
    norm, x, scale = make_norm(torch.bfloat16), numbers(5, 24).bfloat16(), numbers(3, 24, seed=2).bfloat16()
    factors = (scale, OWNER) if is_scaled else ()
    expected = norm(x, *factors)
    with pretend_cuda() as log:
        moved = [each.to("cuda:0") for each in (x, *factors)]
        y = norm.to("cuda:0")(*moved).cpu()
        assert "diffuserve::rms_norm_modulated" in log.kernels
        assert not {"rsqrt", "mul", "index"} & set(log.kernels)
    torch.testing.assert_close(y, expected, rtol=2**-7, atol=2**-7)
