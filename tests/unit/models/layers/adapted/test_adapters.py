"""Adapters are added to the rows of the sequences that use them, and to no others."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.adapters.placing import AdaptedModule, place_adapter
from diffuserve.models.layers.adapted.adapters import Adapter, Delta, PassAdapters, RowAdapters, Uses, key_of
from diffuserve.models.layers.adapted.lora_pair import LoraPair
from diffuserve.models.layers.adapted.stacked_adapters import add_stacked
from diffuserve.models.layers.linear import Linear, Tiling, name_layers
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.layers.quantized.quantized_linear import quantize_layers
from diffuserve.models.layers.tensor_parallel import TensorShard
from diffuserve.models.weights.loading import Placement
from support.pretend_cuda import pretend_cuda
from support.pretend_tensor import CUDA

WIDE, NARROW, RANK = 96, 160, 4
CPU = torch.device("cpu")
LENGTHS = (20, 0, 33, 7, 40)


def random(*shape: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return drawn / math.sqrt(shape[-1])


def make_layer(gelu: bool = False, tiling: Tiling | None = None) -> nn.ModuleDict:
    layer = Linear(WIDE, NARROW, gelu=gelu)
    layer.weight.data, layer.tiling = random(NARROW, WIDE), tiling
    assert layer.bias is not None
    layer.bias.data = random(NARROW)
    layers = nn.ModuleDict({"own": layer})
    name_layers(layers)
    return layers


def make_adapter(seed: int) -> Adapter:
    half = NARROW // 2
    first = Delta(random(WIDE, RANK, seed=seed), random(RANK, half))
    second = Delta(random(WIDE, RANK, seed=seed + 1), random(RANK, half, seed=9), half, random(half, seed=8))
    return Adapter(str(seed), {"own": [first, second]})


A, B = make_adapter(1), make_adapter(2)
USES: tuple[Uses, ...] = ((), ((A, 1.0),), ((A, 0.5), (B, -2.0)), ((A, 0.5), (B, -2.0)), ((B, 1.0),))


def reference(layer: Linear, x: Tensor) -> Tensor:
    y = F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
    start = 0
    for length, uses in zip(LENGTHS, USES, strict=True):
        for adapter, weight in uses:
            for delta in adapter.deltas["own"]:
                change = x[start : start + length].double() @ delta.down.double() @ delta.up.double()
                change += 0 if delta.bias is None else delta.bias.double()
                y[start : start + length, delta.columns] += weight * change
        start += length
    return F.gelu(y, approximate="tanh") if layer.gelu else y


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("tiling", [None, Tiling(16, 16), Tiling(64, 8)])
def test_the_product_equals_the_formula(gelu: bool, tiling: Tiling | None) -> None:
    layer, x = make_layer(gelu, tiling)["own"], random(sum(LENGTHS), WIDE, seed=5)
    assert isinstance(layer, Linear)
    y = layer(x, RowAdapters.of(LENGTHS, USES))
    torch.testing.assert_close(y.double(), reference(layer, x), rtol=0, atol=5e-6)
    assert torch.equal(y[:16], layer(x[:16])) or tiling != Tiling(16, 16)
    if not gelu:  # products of parts have no activation
        assert torch.equal(layer.of_parts(x[:, :32], x[:, 32:], RowAdapters.of(LENGTHS, USES)), y)


@pytest.mark.parametrize("tiling", [None, Tiling(16, 16), Tiling(64, 8)])
def test_activations_in_bf16_are_of_the_sum(tiling: Tiling | None) -> None:
    layer, x = _linear(make_layer(gelu=True, tiling=tiling).bfloat16()), random(sum(LENGTHS), WIDE, seed=5)
    own = {key: _moved(key, CPU, torch.bfloat16) for key in (A, B)}
    uses = [tuple((own[adapter], weight) for adapter, weight in each) for each in USES]
    y = layer(x.bfloat16(), RowAdapters.of(LENGTHS, uses))
    torch.testing.assert_close(y.double(), reference(layer, x.bfloat16()), rtol=0.02, atol=0.02)
    assert torch.equal(y[:16], layer(x.bfloat16()[:16])) or tiling != Tiling(16, 16)


def test_what_is_infinite_with_a_foreign_adapter_spoils_no_row() -> None:
    x = random(4, WIDE, seed=5).abs()
    huge = Adapter("huge", {"own": [Delta(torch.full((WIDE, RANK), 3e38), random(RANK, NARROW))]})
    adapters = RowAdapters.of([2, 2], [((huge, 1.0),), ((A, 1.0),)])
    assert adapters is not None
    y = torch.zeros(4, NARROW)
    add_stacked(y, [x], adapters.on("own"), adapters.masks)
    assert not y[:2].isfinite().all()
    expected = torch.zeros(2, NARROW)
    for delta in A.deltas["own"]:
        change = x[2:] @ delta.down @ delta.up
        expected[:, delta.columns] += change if delta.bias is None else change + delta.bias
    torch.testing.assert_close(y[2:], expected)


@pytest.mark.parametrize("gelu", [False, True])
def test_products_on_cuda_equal_the_formula(gelu: bool) -> None:
    layers, x = make_layer(gelu), random(sum(LENGTHS), WIDE, seed=5)
    expected = reference(_linear(layers), x)
    with pretend_cuda():
        own = {key: _moved(key, CUDA, torch.float32) for key in (A, B)}
        uses = [tuple((own[adapter], weight) for adapter, weight in each) for each in USES]
        first, second = x[:, :32].to(CUDA), x[:, 32:].to(CUDA)
        layer, adapters = _linear(layers.to(CUDA)), RowAdapters.of(LENGTHS, uses)
        found = [layer(x.to(CUDA), adapters).to(CPU)]
        if not gelu:
            found.append(layer.of_parts(first, second, adapters).to(CPU))
    for y in found:
        torch.testing.assert_close(torch.Tensor(y).double(), expected, rtol=0, atol=5e-6)


def _linear(layers: nn.ModuleDict) -> Linear:
    layer = layers["own"]
    assert isinstance(layer, Linear)
    return layer


def _moved(adapter: Adapter, device: torch.device, dtype: torch.dtype) -> Adapter:
    def to(matrix: Tensor) -> Tensor:
        return matrix.to(device, dtype)

    deltas = [
        Delta(to(each.down), to(each.up), each.first, None if each.bias is None else to(each.bias))
        for each in adapter.deltas["own"]
    ]
    return Adapter(adapter.name, {"own": deltas})


@pytest.mark.parametrize("kind", [Quantization.INT8, Quantization.FP8, Quantization.INT4])
@pytest.mark.parametrize("is_weight_only", [False, True])
def test_quantized_layers_add_adapters_in_full_precision(kind: Quantization, is_weight_only: bool) -> None:
    layers, x = make_layer(), random(sum(LENGTHS), WIDE, seed=5)
    quantize_layers(layers, QuantizedLayers("own", is_weight_only), kind)
    name_layers(layers)
    rows = RowAdapters.of(LENGTHS, USES)
    change = layers["own"](x, rows) - layers["own"](x)
    plain = make_layer()["own"]
    torch.testing.assert_close(change, plain(x, rows) - plain(x), rtol=0, atol=1e-5)


def test_a_layer_without_a_name_does_not_ignore_adapters() -> None:
    with pytest.raises(AssertionError, match="without a name"):
        Linear(WIDE, NARROW)(random(8, WIDE), RowAdapters.of([8], [((A, 1.0),)]))


def test_neighbors_with_equal_adapters_are_one_run() -> None:
    rows = RowAdapters.of(LENGTHS, USES)
    assert rows is not None
    assert [(run.start, run.stop) for run in rows.runs] == [(20, 60), (60, 100)]
    assert RowAdapters.of([3, 4], [(), ()]) is None


def test_ranks_have_the_adapters_of_their_tokens() -> None:
    whole = PassAdapters.of([4, 4], [10, 6], [((A, 1.0),), ((B, 1.0),)])
    part = whole.part(range(2, 6), range(8, 16))
    assert part.joint is not None
    assert [(run.start, run.stop, run.uses[0][0]) for run in part.joint.runs] == [
        (0, 2, A),
        (2, 4, B),
        (4, 6, A),
        (6, 12, B),
    ]
    assert whole.part(range(0), range(0)).are_none


def test_keys_tell_adapters_of_one_name_apart() -> None:
    other = Adapter(A.name, A.deltas)
    assert key_of(((A, 1.0),)) == key_of(((A, 1.0),))
    assert len({key_of(((A, 1.0),)), key_of(((A, 0.5),)), key_of(((other, 1.0),))}) == 3


@pytest.mark.parametrize("by_inputs", [True, False])
def test_ranks_share_an_adapter_as_they_share_the_weight(by_inputs: bool) -> None:
    bias, x = random(NARROW), random(8, WIDE)
    pair = LoraPair(random(RANK, WIDE), random(NARROW, RANK), 0.5, bias)
    whole = 0.5 * x @ pair.down.t() @ pair.up.t() + bias
    dim, width = (1, WIDE) if by_inputs else (0, NARROW)
    parts = []
    for rank in (0, 1):
        kept = range(rank * width // 2, (rank + 1) * width // 2)
        share = TensorShard(dim, width, ((kept.start, kept.stop),))
        layer = Linear(WIDE // 2, NARROW) if by_inputs else Linear(WIDE, NARROW // 2)
        layers = nn.ModuleDict({"own": layer})
        name_layers(layers)
        module = AdaptedModule("m", layers, {"its.weight": Placement("own.weight", share=share)})
        [delta] = place_adapter("a", {"m": {"its": pair}}, [module], CPU).deltas["own"]
        change = (x[:, kept.start : kept.stop] if by_inputs else x) @ delta.down @ delta.up
        parts.append(change if delta.bias is None else change + delta.bias)
    shared = parts[0] + parts[1] if by_inputs else torch.cat(parts, dim=1)
    torch.testing.assert_close(shared, whole)
