"""Blocks of a model that pass through a few slots of device memory, one after another.

The weights of a block are one run of bytes on the host, and views of the block's slot for ever. While a
block computes, those that follow are copied into the other slots.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diffuserve.models.layers.copier import Copier

_ALIGNMENT = 64  # of a tensor in its run: as wide as a CPU's vectors, and more than kernels ask for


def num_slots(num_blocks: int, least: int = 2) -> int:
    """Return the fewest slots, but `least`, that divide the blocks; all blocks where no other number does.

    Else the first block of the next pass would belong in the slot that the last block still computes in.
    """
    return next(count for count in range(min(least, num_blocks), num_blocks + 1) if num_blocks % count == 0)


class BlockSlots:
    """Brings each block's weights to the device before its forward pass, and gives its slot to the next.

    Blocks are called in order, in one pass at a time; a pass that broke off costs the copies that it began.
    Submodules that are `apart` keep their weights where they are.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        slots: int,
        device: torch.device,
        copier: Copier,
        apart: Collection[nn.Module] = (),
    ) -> None:
        if len(blocks) % slots:
            raise ValueError(
                f"{slots} slots do not divide {len(blocks)} blocks; try {num_slots(len(blocks))}"
            )
        self._copier = copier
        placed = [list(_place(block, set(apart))) for block in blocks]
        self._runs = [_run(tensors, copier) for tensors in placed]
        size = max(map(len, self._runs))
        self._slots = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(slots)]
        self._content: list[int | None] = [None] * slots
        for slot in self._slots:
            copier.free(slot)
        for index, (block, tensors) in enumerate(zip(blocks, placed, strict=True)):
            for tensor in tensors:
                tensor.become_view_of(self._slots[index % slots])
            self._hook(block, index)

    @property
    def device_bytes(self) -> int:
        """The bytes of all slots."""
        return sum(map(len, self._slots))

    @property
    def bytes_per_pass(self) -> int:
        """The bytes that a forward pass copies to the device."""
        return sum(map(len, self._runs))

    def _hook(self, block: nn.Module, index: int) -> None:
        def before(_block: nn.Module, _args: Any) -> None:
            self._before(index)

        def after(_block: nn.Module, _args: Any, _output: Any) -> None:
            self._after(index)

        block.register_forward_pre_hook(before)
        block.register_forward_hook(after)

    def _before(self, index: int) -> None:
        for ahead in range(len(self._slots)):
            self._bring((index + ahead) % len(self._runs))
        self._copier.wait(self._slots[index % len(self._slots)])

    def _bring(self, index: int) -> None:
        at = index % len(self._slots)
        if self._content[at] == index:
            return
        if self._content[at] is not None:  # left by a pass that broke off
            self._copier.free(self._slots[at])
        self._copier.begin(self._slots[at], self._runs[index])
        self._content[at] = index

    def _after(self, index: int) -> None:
        at = index % len(self._slots)
        self._copier.free(self._slots[at])
        self._content[at] = None


@dataclass(frozen=True)
class _Placed:
    """A parameter or buffer, and where its bytes are in its block's run."""

    owner: nn.Module
    name: str
    tensor: Tensor
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.tensor.nbytes

    def view_of(self, run: Tensor) -> Tensor:
        return run[self.start : self.stop].view(self.tensor.dtype).view(self.tensor.shape)

    def become_view_of(self, slot: Tensor) -> None:
        view = self.view_of(slot)
        is_parameter = isinstance(self.tensor, nn.Parameter)
        setattr(self.owner, self.name, nn.Parameter(view, requires_grad=False) if is_parameter else view)


def _place(block: nn.Module, apart: Collection[nn.Module]) -> Iterator[_Placed]:
    start = 0
    for owner, name, tensor in _tensors(block, apart):
        placed = _Placed(owner, name, tensor, start)
        yield placed
        start = -(-placed.stop // _ALIGNMENT) * _ALIGNMENT


def _tensors(module: nn.Module, apart: Collection[nn.Module]) -> Iterator[tuple[nn.Module, str, Tensor]]:
    if module in apart:
        return
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    yield from ((module, name, tensor) for name, tensor in own)
    for child in module.children():
        yield from _tensors(child, apart)


def _run(tensors: Sequence[_Placed], copier: Copier) -> Tensor:
    run = copier.host_run(tensors[-1].stop)
    for placed in tensors:
        placed.view_of(run).copy_(placed.tensor)
    return run
