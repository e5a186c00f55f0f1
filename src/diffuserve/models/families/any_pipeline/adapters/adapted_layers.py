"""Layers of diffusers' modules that take adapters: of those of the pass that runs on their thread.

Between the call of a model and its layers is diffusers' code, which has no argument for adapters; and several
threads may run passes of one module at a time. So a pass tells its adapters by its thread.
"""

import functools
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from diffuserve.domain.errors import InvalidAdapter
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.models.families.any_pipeline.adapters.batch_adapters import BatchAdapters
from diffuserve.models.layers.adapted.adapters import Adapter, Delta, Uses
from diffuserve.models.layers.adapted.lora_pair import Components, LoraPair
from diffuserve.models.layers.linear import Linear
from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear, input_dtype

_thread = threading.local()
_NAME: Final = "adapted_as"  # the attribute of a layer that takes adapters: what they call it
_MODULE: Final = "text_model."  # which newer text encoders have lost

AdaptedLayer = nn.Linear | nn.Conv2d | Linear


@contextmanager
def adding(adapters: BatchAdapters | None) -> Iterator[None]:
    """Have layers add adapters to what they compute within, on this thread."""
    before, _thread.adapters = _now(), adapters
    try:
        yield
    finally:
        _thread.adapters = before


def _now() -> BatchAdapters | None:
    found: BatchAdapters | None = getattr(_thread, "adapters", None)
    return found


def by_component(uses: Uses) -> Mapping[str, Uses]:
    """Return adapters by the components that they change."""
    found = defaultdict[str, list[tuple[Adapter, float]]](list)
    for adapter, weight in uses:
        for component in dict.fromkeys(layer.partition(".")[0] for layer in adapter.deltas):
            found[component].append((adapter, weight))
    return {component: tuple(own) for component, own in found.items()}


class AdaptedLayers:
    """The layers of a pipeline's modules. Those that no adapter has named yet are as diffusers made them."""

    def __init__(self, parts: Mapping[str, Any], device: torch.device) -> None:
        self._modules = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
        self._device = device
        self._called: set[str] = set()
        self._lock = threading.Lock()  # adapters are placed by several threads

    def place(self, name: str, components: Components) -> Adapter:
        """Bring an adapter to the device, in its layers' dtypes.

        Raise `InvalidAdapter`, which names it and the layer, if it does not fit.
        """
        try:
            return Adapter(name, self._deltas(components))
        except InvalidAdapter as error:
            raise InvalidAdapter(f"adapter {name!r}: {error}") from error

    def warnings(self, uses: Uses, asked: Sequence[AdapterUse]) -> tuple[str, ...]:
        """Return which adapters change layers that no pass has called: there they have no effect.

        `asked` has the names by which the request knows its adapters.
        """
        return tuple(
            f"adapter {use.name!r} has no effect on {len(uncalled)} layers that the model does not call, "
            f"such as {uncalled[0]}"
            for (adapter, _), use in zip(uses, asked, strict=True)
            if (uncalled := sorted(adapter.deltas.keys() - self._called))
        )

    def _deltas(self, components: Components) -> Mapping[str, list[Delta]]:
        deltas = defaultdict[str, list[Delta]](list)
        for component, pairs in components.items():
            for layer_name, pair in pairs.items():
                layer = self._layer(component, layer_name)
                delta = _delta(layer_name, pair, layer, self._device)
                deltas[self._adapt(layer, f"{component}.{layer_name}")].append(delta)
        return dict(deltas)

    def _layer(self, component: str, name: str) -> AdaptedLayer:
        module = self._modules.get(component)
        if module is None:
            raise InvalidAdapter(f"it changes {component}, which this model has not")
        for path in (name, name.removeprefix(_MODULE)):
            try:
                layer = module.get_submodule(path)
            except AttributeError:
                continue
            if isinstance(layer, AdaptedLayer) and getattr(layer, "groups", 1) == 1:
                return layer
        raise InvalidAdapter(f"{component}.{name}: the model has no such linear layer or convolution")

    def _adapt(self, layer: AdaptedLayer, name: str) -> str:
        """Have a layer take adapters, and return its name in them: the first of several that it has."""
        with self._lock:
            if not hasattr(layer, _NAME):
                self._wrap(layer, name)
        known: str = getattr(layer, _NAME)
        return known

    def _wrap(self, layer: AdaptedLayer, name: str) -> None:
        plain, called = layer.forward, self._called

        @functools.wraps(plain)
        def adapted(*args: Any, **kwargs: Any) -> Tensor:
            y: Tensor = plain(*args, **kwargs)
            if (adapters := _now()) is not None:
                called.add(name)
                adapters.add(name, layer, (*args, *kwargs.values())[0], y)
            return y

        setattr(layer, _NAME, name)
        setattr(layer, "forward", adapted)  # noqa: B010 (it is no method of this one alone)


def _delta(name: str, pair: LoraPair, layer: AdaptedLayer, device: torch.device) -> Delta:
    _check(name, pair, _weight_shape(layer))
    dtype = input_dtype(layer)
    down = pair.down.flatten(1).to(device, dtype).contiguous().t()
    up = (pair.up.float() * pair.scale).flatten(1).to(device, dtype).t().contiguous()
    return Delta(down, up, bias=None if pair.bias is None else pair.bias.to(device, dtype))


def _weight_shape(layer: AdaptedLayer) -> tuple[int, ...]:
    if isinstance(layer, QuantizedLinear):
        return (layer.out_features, layer.in_features)
    return tuple(layer.weight.shape)


def _check(name: str, pair: LoraPair, shape: tuple[int, ...]) -> None:
    """Raise `InvalidAdapter` for matrices of other shapes, and for numbers that are not finite."""
    rank = pair.down.shape[0]
    is_pair = rank > 0 and tuple(pair.up.shape) == (shape[0], rank, *(1 for _ in shape[2:]))
    if not is_pair or tuple(pair.down.shape[1:]) != shape[1:]:
        shapes = f"down {tuple(pair.down.shape)} and up {tuple(pair.up.shape)}"
        raise InvalidAdapter(f"{name}: {shapes} do not fit a layer of {shape}")
    if pair.bias is not None and tuple(pair.bias.shape) != shape[:1]:
        raise InvalidAdapter(f"{name}: a bias of {tuple(pair.bias.shape)} is not of {shape[0]} channels")
    numbers = [pair.down, pair.up, torch.tensor(pair.scale), *([] if pair.bias is None else [pair.bias])]
    if not all(bool(each.isfinite().all()) for each in numbers):
        raise InvalidAdapter(f"{name}: has numbers that are not finite")
