"""Adapters are added to the rows of a convolution, and to the positions of a linear layer, that use them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffuserve.models.layers.adapted.adapted_convolution import AdaptedConv2d
from diffuserve.models.layers.adapted.adapters import Adapter, ConvolutionDelta, Delta, RowAdapters, Uses
from diffuserve.models.layers.linear import Linear, PositionsLinear, name_layers

WIDE, NARROW, RANK = 12, 16, 4
COUNTS = (2, 1, 0, 2)  # rows of four requests


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-1]


def make_adapter(seed: int, sides: int, has_bias: bool) -> Adapter:
    kernel = ConvolutionDelta(
        random(RANK, WIDE, sides, sides, seed=seed),
        random(NARROW, RANK, 1, 1, seed=-seed),
        random(NARROW, seed=seed) if has_bias else None,
    )
    matrices = Delta(random(WIDE, RANK, seed=seed), random(RANK, NARROW, seed=-seed))
    return Adapter(str(seed), {"linear": [matrices]}, convolutions={"conv": kernel})


@pytest.mark.parametrize(("sides", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (1, 1, 0)])
def test_a_convolution_equals_one_with_the_change_in_its_weight(
    sides: int, stride: int, padding: int
) -> None:
    a, b = make_adapter(1, sides, has_bias=True), make_adapter(2, sides, has_bias=False)
    uses: tuple[Uses, ...] = ((), ((a, 0.5), (b, -2.0)), ((a, 1.0),), ((b, 1.5),))
    layer = AdaptedConv2d(WIDE, NARROW, sides, stride, padding)
    name_layers(nn.ModuleDict({"conv": layer}))
    x = random(sum(COUNTS), WIDE, 7, 6).to(memory_format=torch.channels_last)
    with torch.inference_mode():
        y, plain = layer(x, RowAdapters.of(COUNTS, uses)), layer(x)
    assert torch.equal(y[:2], plain[:2])
    assert layer.bias is not None
    start = 0
    for count, own in zip(COUNTS, uses, strict=True):
        weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
        for adapter, scale in own:
            delta = adapter.convolutions["conv"]
            change = delta.up.flatten(1) @ delta.down.flatten(1)
            weight += scale * change.view(weight.shape)
            bias += 0 if delta.bias is None else scale * delta.bias
        expected = F.conv2d(x[start : start + count], weight, bias, stride, padding)
        torch.testing.assert_close(y[start : start + count], expected, rtol=0, atol=1e-5)
        start += count


def test_all_positions_of_a_row_have_its_adapters() -> None:
    a, b = make_adapter(1, 1, has_bias=False), make_adapter(2, 1, has_bias=False)
    rows = RowAdapters.of(COUNTS, ((), ((a, 0.5),), ((a, 1.0),), ((a, 1.0), (b, 2.0))))
    layer = PositionsLinear(WIDE, NARROW)
    layer.weight.data, layer.bias = random(NARROW, WIDE), None
    name_layers(nn.ModuleDict({"linear": layer}))
    flat = Linear(WIDE, NARROW, bias=False)
    flat.weight.data, flat.name = layer.weight.data, layer.name
    for x in (random(sum(COUNTS), WIDE), random(sum(COUNTS), 3, WIDE), random(sum(COUNTS), WIDE, 3).mT):
        y = layer(x, rows).unflatten(0, (-1, 1)).flatten(1, -2)
        for position in range(y.shape[1]):
            at = x if x.dim() == 2 else x[:, position]
            torch.testing.assert_close(y[:, position], flat(at, rows), rtol=0, atol=1e-6)


def test_a_convolution_without_a_name_does_not_ignore_adapters() -> None:
    adapters = RowAdapters.of([1], [((make_adapter(1, 1, has_bias=False), 1.0),)])
    with pytest.raises(AssertionError, match="without a name"):
        AdaptedConv2d(WIDE, NARROW, 1)(random(1, WIDE, 2, 2), adapters)
