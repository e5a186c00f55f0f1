"""The weights of a module on the host, from where they are copied to the device."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffuserve.models.offload.copier import Copier

_ALIGNMENT = 64  # of tensors in a run; as wide as a CPU's vectors, and more than kernels need


class HostWeights:
    """A module's parameters and buffers as one `run` of bytes, for a device.

    Submodules that are `apart` keep their weights where they are.
    """

    def __init__(
        self, module: nn.Module, device: torch.device, copier: Copier, apart: Collection[nn.Module] = ()
    ) -> None:
        self._placed = list(_place(module, device, set(apart)))
        self.run = copier.host_run(self._placed[-1].stop if self._placed else 0)
        for placed in self._placed:
            placed.view_of(self.run).copy_(placed.owned.tensor)

    def __len__(self) -> int:
        """Return the number of bytes."""
        return len(self.run)

    def become_views_of(self, slot: Tensor) -> None:
        """Make the module's weights views of a slot, into which the run is copied before use."""
        for placed in self._placed:
            placed.owned.replace_by(placed.view_of(slot))


@dataclass(frozen=True)
class Owned:
    """A parameter or buffer, and the module that has it under a name."""

    owner: nn.Module
    name: str
    tensor: Tensor

    def replace_by(self, other: Tensor) -> None:
        """Replace the owner's tensor by another one."""
        is_parameter = isinstance(self.tensor, nn.Parameter)
        setattr(self.owner, self.name, nn.Parameter(other, requires_grad=False) if is_parameter else other)


def own_tensors(module: nn.Module, apart: Collection[nn.Module] = ()) -> Iterator[Owned]:
    """Yield the parameters and buffers of a module, but not those of submodules that are `apart`."""
    if module in apart:
        return
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    yield from (Owned(module, name, tensor) for name, tensor in own)
    for child in module.children():
        yield from own_tensors(child, apart)


@dataclass(frozen=True)
class _Placed:
    """A tensor, and where its bytes are in the run."""

    owned: Owned
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.owned.tensor.nbytes

    def view_of(self, run: Tensor) -> Tensor:
        """Return the tensor in a run; it keeps the order of its dimensions in memory."""
        tensor = self.owned.tensor
        part = run[self.start : self.stop].view(tensor.dtype)
        return part.as_strided(tensor.shape, tensor.stride())


def _place(module: nn.Module, device: torch.device, apart: Collection[nn.Module]) -> Iterator[_Placed]:
    stop = 0
    for owned in own_tensors(module, apart):
        # A CPU's kernels round differently for other alignments, and files place weights anywhere.
        remainder = owned.tensor.data_ptr() if device.type == "cpu" else 0
        placed = _Placed(owned, stop + (remainder - stop) % _ALIGNMENT)
        yield placed
        stop = placed.stop
