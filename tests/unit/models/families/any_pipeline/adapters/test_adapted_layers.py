"""Layers of diffusers' modules add adapters to the rows of those calls of a pass that have them."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diffuserve.domain.errors import InvalidAdapter
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.models.families.any_pipeline.adapters.adapted_layers import AdaptedLayers, by_component
from diffuserve.models.families.any_pipeline.adapters.batch_adapters import UnevenRows
from diffuserve.models.families.any_pipeline.running.call import Call
from diffuserve.models.families.any_pipeline.running.merging import run_merged
from diffuserve.models.layers.adapted.adapters import Adapter, Uses
from diffuserve.models.layers.adapted.lora_pair import LoraPair
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.layers.quantized.quantized_linear import quantize_layers
from diffuserve.models.machine.isolation import isolate

WIDTH, RANK = 32, 4
NAN = LoraPair(torch.full((1, WIDTH), torch.nan), torch.ones(WIDTH, 1))
CPU = torch.device("cpu")


class Model(nn.Module):
    """Layers over frames that are folded into the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.conv = nn.Conv2d(WIDTH, 8, 3, stride=2, padding=1)
        self.again = self.linear
        self.idle = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of frames, of (rows, frames, height, width, channels)."""
        y = self.linear(x.flatten(0, 1)).permute(0, 3, 1, 2)
        features: Tensor = self.conv(y).unflatten(0, x.shape[:2])
        return features


class OfAll(Model):
    """A model that computes something once for all rows."""

    def forward(self, x: Tensor) -> Tensor:
        of_all: Tensor = self.linear(torch.ones(1, WIDTH))
        return x + of_all


def pair(layer: Any, seed: int) -> LoraPair:
    generator = torch.Generator().manual_seed(seed)
    outputs, inputs, *kernel = layer.weight.shape
    return LoraPair(
        torch.randn(RANK, inputs, *kernel, generator=generator) / inputs,
        torch.randn(outputs, RANK, *(1 for _ in kernel), generator=generator),
        0.5,
        torch.randn(outputs, generator=generator),
    )


Pairs = Mapping[str, LoraPair]


def pairs_of(model: Model, seed: int, layers: Sequence[str] = ("linear", "conv")) -> Pairs:
    return {name: pair(model.get_submodule(name), seed) for name in layers}


def placed(model: Model, name: str, pairs: Pairs) -> Adapter:
    return AdaptedLayers({"transformer": model}, CPU).place(name, {"transformer": pairs})


def with_weights(model: Model, uses: Uses, pairs: Mapping[str, Pairs]) -> Model:
    """Return a model whose weights and biases have adapters added."""
    changed = type(model)()
    changed.load_state_dict(model.state_dict())
    with torch.no_grad():
        for adapter, weight in uses:
            for name, (down, up, scale, bias) in pairs[adapter.name].items():
                layer: Any = changed.get_submodule(name)
                layer.weight += weight * scale * (up.flatten(1) @ down.flatten(1)).view_as(layer.weight)
                assert bias is not None
                layer.bias += weight * bias
    return changed


def call(model: nn.Module, x: Tensor, uses: Uses = ()) -> Call:
    return Call("transformer", model, "forward", model.forward, {"x": x}, uses)


def test_each_call_of_a_pass_gets_its_own_adapters_on_all_its_frames() -> None:
    torch.manual_seed(0)
    model = Model()
    pairs = {"a": pairs_of(model, 1), "b": pairs_of(model, 2)}
    a, b = (placed(model, name, own) for name, own in pairs.items())
    uses: Sequence[Uses] = ((), ((a, 0.7),), ((b, 1.3),), ((a, 0.5), (b, -0.25)))
    inputs = [torch.randn(rows, 3, 6, 6, WIDTH) for rows in (2, 1, 2, 2)]
    with torch.inference_mode():
        results = run_merged([call(model, x, own) for x, own in zip(inputs, uses, strict=True)])
        plain = run_merged([call(model, x) for x in inputs])
        for x, own, result in zip(inputs, uses, results, strict=True):
            torch.testing.assert_close(result, with_weights(model, own, pairs)(x), atol=2e-5, rtol=2e-5)
    assert torch.equal(results[0], plain[0]), "without adapters it is the same to the bit"


def test_what_a_layer_computes_for_all_rows_is_in_no_pass_of_several_adapters() -> None:
    model = OfAll()
    uses = ((placed(model, "a", pairs_of(model, 1, ["linear"])), 1.0),)
    x = torch.randn(1, WIDTH)
    with torch.inference_mode():
        alone = run_merged([call(model, x, uses)])
        torch.testing.assert_close(run_merged([call(model, x, uses)] * 2), alone * 2)
        with pytest.raises(UnevenRows, match=r"transformer\.linear: 1 rows in a pass of 2"):
            run_merged([call(model, x, uses), call(model, x)])
        halved = isolate([call(model, x, uses), call(model, x)], run_merged)
        torch.testing.assert_close(halved, [alone[0], model(x)], rtol=0, atol=0)


def test_a_layer_has_one_name_and_those_that_nobody_calls_are_told() -> None:
    model = Model()
    layers = AdaptedLayers({"transformer": model}, CPU)
    first = layers.place("a", {"transformer": {"linear": pair(model.linear, 1)}})
    named = {name: pair(model.linear, 2) for name in ("again", "idle")}
    second = layers.place("b", {"transformer": named})
    assert second.deltas.keys() == {"transformer.linear", "transformer.idle"}
    uses = ((first, 1.0), (second, 1.0))
    with torch.inference_mode():
        run_merged([call(model, torch.randn(1, 1, 2, 2, WIDTH), uses)])
    [warning] = layers.warnings(uses, (AdapterUse("a"), AdapterUse("b")))
    assert warning.startswith("adapter 'b' has no effect on 1 layers")
    assert "transformer.idle" in warning


def test_quantized_layers_take_adapters_in_full_precision() -> None:
    torch.manual_seed(0)
    model = Model()
    quantize_layers(model, QuantizedLayers("linear"), Quantization.INT8)
    own = pair(nn.Linear(WIDTH, WIDTH), 1)
    adapter = AdaptedLayers({"transformer": model}, CPU).place("a", {"transformer": {"linear": own}})
    x = torch.randn(3, WIDTH)
    with torch.inference_mode():
        plain = model.linear(x)
        uses = by_component(((adapter, 1.0),))["transformer"]
        [changed] = run_merged([Call("transformer", model, "forward", model.linear, {"x": x}, uses)])
    assert own.bias is not None
    expected = plain + own.scale * (x @ own.down.T @ own.up.T) + own.bias
    torch.testing.assert_close(changed, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("component", "name", "given", "told"),
    [
        ("vae", "linear", pair(nn.Linear(WIDTH, WIDTH), 1), "it changes vae"),
        ("transformer", "linears", pair(nn.Linear(WIDTH, WIDTH), 1), "transformer.linears: the model has no"),
        ("transformer", "linear", pair(nn.Linear(WIDTH, 8), 1), r"up \(8, 4\) do not fit .* \(32, 32\)"),
        ("transformer", "conv", pair(nn.Linear(WIDTH, 8), 1), r"do not fit a layer of \(8, 32, 3, 3\)"),
        (
            "transformer",
            "linear",
            NAN,
            "finite",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(component: str, name: str, given: LoraPair, told: str) -> None:
    layers = AdaptedLayers({"transformer": Model()}, CPU)
    with pytest.raises(InvalidAdapter, match=rf"adapter 'a': .*{told}"):
        layers.place("a", {component: {name: given}})
