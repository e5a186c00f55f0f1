"""Brings an adapter to the layers of a loaded model, whatever they are called and wherever they are."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from diffuserve.domain.errors import InvalidAdapter
from diffuserve.models.layers.adapted.adapted_convolution import AdaptedConv2d
from diffuserve.models.layers.adapted.adapters import Adapter, ConvolutionDelta, Delta
from diffuserve.models.layers.adapted.lora_pair import Components, LoraPair
from diffuserve.models.layers.linear import Linear
from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear, input_dtype
from diffuserve.models.weights.loading import Placement


@dataclass(frozen=True)
class AdaptedModule:
    """A module that takes adapters of a component; `placements` say where its checkpoint's tensors are.

    If it `encodes`, it is part of how prompts are encoded.
    """

    component: str
    module: nn.Module
    placements: Mapping[str, Placement]
    encodes: bool = False


def place_adapter(
    name: str,
    components: Components,
    modules: Sequence[AdaptedModule],
    device: torch.device,
) -> Adapter:
    """Return an adapter on the device, in the layers' dtype.

    `components` have pairs by the names of layers in checkpoints, and `modules` are those of the model that
    take adapters. If ranks share the weights, each keeps its part. Raise `InvalidAdapter`, which names the
    adapter and the layer.
    """
    deltas, convolutions = defaultdict[str, list[Delta]](list), dict[str, ConvolutionDelta]()
    encodes = False
    try:
        for component, pairs in components.items():
            own = _of_component(component, modules)
            for layer_name, pair in pairs.items():
                found = _find(layer_name, own)
                encodes |= found.encodes
                if isinstance(found.layer, AdaptedConv2d):
                    convolutions[found.layer.name] = _convolution(layer_name, pair, found.layer, device)
                else:
                    delta = _delta(layer_name, pair, found.layer, found.place, device)
                    deltas[found.layer.name].append(delta)
    except InvalidAdapter as error:
        raise InvalidAdapter(f"adapter {name!r}: {error}") from error
    return Adapter(name, dict(deltas), changes_prompts=encodes, convolutions=convolutions)


class _Found(NamedTuple):
    layer: Linear | AdaptedConv2d
    place: Placement
    encodes: bool


def _of_component(component: str, modules: Sequence[AdaptedModule]) -> list[AdaptedModule]:
    own = [each for each in modules if each.component == component]
    if not own:
        known = " and ".join(dict.fromkeys(each.component for each in modules))
        raise InvalidAdapter(f"it changes {component}; this model takes adapters of its {known} alone")
    return own


def _find(name: str, modules: Sequence[AdaptedModule]) -> _Found:
    for each in modules:
        place = each.placements.get(f"{name}.weight")
        if place is not None:
            layer = each.module.get_submodule(place.parameter.rpartition(".")[0])
            if isinstance(layer, Linear | AdaptedConv2d):
                assert layer.name, "a layer without a name finds no adapter"
                return _Found(layer, place, each.encodes)
    raise InvalidAdapter(f"{name}: the model has no such layer that takes adapters")


def _convolution(name: str, pair: LoraPair, layer: AdaptedConv2d, device: torch.device) -> ConvolutionDelta:
    kernel = layer.kernel_size
    _check_shapes(name, pair, (layer.out_channels, layer.in_channels, *kernel), "a convolution takes kernels")
    dtype = layer.weight.dtype
    return ConvolutionDelta(
        pair.down.to(device, dtype, memory_format=torch.channels_last),
        _moved(pair.up.float() * pair.scale, device, dtype),
        None if pair.bias is None else _moved(pair.bias, device, dtype),
    )


def _delta(name: str, pair: LoraPair, layer: Linear, place: Placement, device: torch.device) -> Delta:
    width = layer.out_features // place.num_parts
    _check(name, pair, layer, place)
    down, up, bias = pair.down.float(), pair.up.float() * pair.scale, pair.bias
    if place.share is not None and place.share.dim == 1:
        down = place.share.of(down)
        bias = bias if place.share.is_first else None  # the ranks' sum has it once
    elif place.share is not None:
        up = place.share.of(up)
        bias = None if bias is None else place.share.of(bias)
    dtype, first = input_dtype(layer), place.part * width
    down, up = _moved(down.t(), device, dtype), _moved(up.t(), device, dtype)
    return Delta(down, up, first, None if bias is None else _moved(bias, device, dtype))


def _check(name: str, pair: LoraPair, layer: Linear, place: Placement) -> None:
    """Raise `InvalidAdapter` for matrices of other shapes, and for numbers that are not finite."""
    shape = (layer.out_features // place.num_parts, _num_inputs(layer))
    wanted = shape if place.share is None else place.share.whole_shape(shape)
    _check_shapes(name, pair, wanted, "a linear layer takes matrices")


def _check_shapes(name: str, pair: LoraPair, wanted: Sequence[int], takes: str) -> None:
    """Raise `InvalidAdapter` unless a pair fits a weight of outputs, inputs and a kernel's sides."""
    if pair.down.dim() != len(wanted) or pair.up.dim() != len(wanted):
        raise InvalidAdapter(f"{name}: {takes}, not {_shapes(pair)}")
    outputs, *rest = wanted
    rank, ones = pair.down.shape[0], [1] * len(rest[1:])
    if rank == 0 or [*pair.down.shape] != [rank, *rest] or [*pair.up.shape] != [outputs, rank, *ones]:
        raise InvalidAdapter(f"{name}: {_shapes(pair)} do not fit a layer of {rest[0]} to {outputs} channels")
    if pair.bias is not None and pair.bias.shape != (outputs,):
        raise InvalidAdapter(f"{name}: a bias of {tuple(pair.bias.shape)} is not of {outputs} channels")
    numbers = [pair.down, pair.up, torch.tensor(pair.scale), *([] if pair.bias is None else [pair.bias])]
    if not all(bool(each.isfinite().all()) for each in numbers):
        raise InvalidAdapter(f"{name}: has numbers that are not finite")


def _num_inputs(layer: Linear) -> int:
    return layer.in_features if isinstance(layer, QuantizedLinear) else layer.weight.shape[1]


def _shapes(pair: LoraPair) -> str:
    return f"down {tuple(pair.down.shape)} and up {tuple(pair.up.shape)}"


def _moved(matrix: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return matrix.to(device, dtype).contiguous()
