"""Weights of a loaded model that stay on the host until they are used."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.residency import Residency
from diffuserve.models.offload.block_slots import BlockSlots, num_slots, slotted
from diffuserve.models.offload.copier import Copier
from diffuserve.models.offload.host_weights import Owned, own_tensors
from diffuserve.models.offload.module_swap import FairLock, ModuleSwap, one_by_one


@dataclass(frozen=True)
class Ring:
    """Layers that run in this order, in every pass or only in some.

    Submodules that are `apart` stay on the device, as other layers read them while their own does not run.
    """

    layers: Sequence[nn.Module]
    apart: Collection[nn.Module] = ()
    is_in_every_pass: bool = True

    def tensors(self) -> Iterator[Owned]:
        """Yield the streamed weights."""
        for layer in self.layers:
            yield from own_tensors(layer, self.apart)


@dataclass(frozen=True)
class Component:
    """A part of a model whose weights are used only during calls of `entries`.

    `rings` hold most of its weights. `tables` can be read on the host instead of the device.
    """

    module: nn.Module
    rings: Sequence[Ring] = ()
    tables: Sequence[nn.Embedding] = ()
    is_encoder: bool = False
    is_denoiser: bool = False
    is_decoder: bool = False
    entries: Sequence[str] = ("forward",)

    @property
    def is_loaded(self) -> bool:
        """Return whether it has weights: parts of a model that are not loaded have only shapes."""
        return not any(parameter.is_meta for parameter in self.module.parameters())


def place(components: Sequence[Component], mode: Offload, device: torch.device, copier: Copier) -> Residency:
    """Move the weights of components from the host to their places, and return the residency."""
    if mode is Offload.MODEL:
        return _share_memory(components, device, copier)
    parts = [_placed(component, mode, device, copier) for component in components]
    return Residency(
        mode,
        sum(part.device_bytes for part in parts),
        sum(part.host_bytes for part in parts),
        sum(part.encode_bytes for part in parts),
        max((part.step_bytes for part in parts), default=0),
    )


def _placed(component: Component, mode: Offload, device: torch.device, copier: Copier) -> Residency:
    """Move a component to the device, or stream its layers through the device."""
    passes = component.is_encoder or (component.is_denoiser and mode is Offload.LAYERS)
    if not passes:
        return Residency(mode, _bring(own_tensors(component.module), device))
    rings = [replace(ring, layers=slotted(ring.layers)) for ring in component.rings]
    passing = {id(each.tensor) for ring in rings for each in ring.tensors()}
    others = own_tensors(component.module, component.tables)
    resident_bytes = _bring((each for each in others if id(each.tensor) not in passing), device)
    for table in component.tables:
        _look_up_on_host(table, device)
    slots = [_slots(ring, device, copier) for ring in rings]
    lock = FairLock()
    one_by_one(component.module, component.entries, lambda: lock)
    waiting = sum(each.bytes_per_pass for each in slots)
    pairs = zip(rings, slots, strict=True)
    copied = sum(each.bytes_per_pass for ring, each in pairs if ring.is_in_every_pass)
    return Residency(
        mode,
        resident_bytes + sum(each.device_bytes for each in slots),
        waiting + sum(table.weight.nbytes for table in component.tables),
        encode_bytes=copied if component.is_encoder else 0,
        step_bytes=copied if component.is_denoiser else 0,
    )


def _slots(ring: Ring, device: torch.device, copier: Copier) -> BlockSlots:
    return BlockSlots(ring.layers, num_slots(len(ring.layers)), device, copier, ring.apart)


def _bring(tensors: Iterable[Owned], device: torch.device) -> int:
    """Move tensors to the device, and return their bytes."""
    num_bytes = 0
    for each in tensors:
        each.replace_by(each.tensor.to(device))
        num_bytes += each.tensor.nbytes
    return num_bytes


def _look_up_on_host(table: nn.Embedding, device: torch.device) -> None:
    """Keep an embedding on the host, and send its results to the device."""
    table.register_forward_pre_hook(lambda _table, args: (args[0].cpu(),))
    table.register_forward_hook(lambda _table, _args, found: found.to(device))


def _share_memory(components: Sequence[Component], device: torch.device, copier: Copier) -> Residency:
    """Let components share memory of the device, as large as the largest of them, one at a time."""
    turns = ModuleSwap([each.module for each in components], device, copier)
    for component in components:
        one_by_one(component.module, component.entries, partial(turns.of, component.module))
    sizes = {each.module: turns.num_bytes(each.module) for each in components}
    return Residency(
        Offload.MODEL,
        turns.device_bytes,
        sum(sizes.values()),
        encode_bytes=sum(sizes[each.module] for each in components if each.is_encoder),
        decode_bytes=sum(sizes[each.module] for each in components if each.is_decoder),
    )
