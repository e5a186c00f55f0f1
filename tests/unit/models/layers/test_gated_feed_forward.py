"""SwiGLU with gates and values in one product, against separate ones."""

import pytest
import torch
import torch.nn.functional as F

from diffuserve.models.layers.gated_feed_forward import GatedFeedForward, gated
from support.pretend_cuda import pretend_cuda


@pytest.mark.parametrize("bias", [False, True])
def test_the_gates_come_first(bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = GatedFeedForward(8, 12, bias=bias)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    x = torch.randn(5, 8, generator=generator)
    (gate, value), outer = layer.linear_in.weight.chunk(2), layer.linear_out
    biases = layer.linear_in.bias.chunk(2) if layer.linear_in.bias is not None else (None, None)
    hidden = F.silu(F.linear(x, gate, biases[0])) * F.linear(x, value, biases[1])
    torch.testing.assert_close(layer(x), F.linear(hidden, outer.weight, outer.bias))


def test_on_cuda_it_is_one_kernel() -> None:
    both = torch.randn(5, 30, generator=torch.Generator().manual_seed(0)).bfloat16()[:, 6:]
    with pretend_cuda() as log:
        hidden = gated(both.to("cuda:0")).cpu()
        assert "diffuserve::silu_gated" in log.kernels
        assert not {"silu", "mul_"} & set(log.kernels)
    torch.testing.assert_close(hidden, gated(both), rtol=2**-7, atol=2**-7)
