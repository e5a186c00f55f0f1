"""Blocks of a model that are streamed through a few slots of device memory.

The weights of a block are one run of bytes on the host; its parameters are permanent views of the block's
slot. While a block computes, the next ones are copied into the other slots.
"""

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from diffuserve.models.offload.copier import Copier
from diffuserve.models.offload.host_weights import HostWeights

_MAX_SLOTS = 3  # if these do not divide the blocks, the last block stays on the device

Block = TypeVar("Block", bound=nn.Module)


def num_slots(num_blocks: int, least: int = 2) -> int:
    """Return the smallest number of slots, from `least` on, that divides the number of blocks.

    Otherwise the first block of the next pass would need the slot in which the last block still computes.
    """
    return next(count for count in range(min(least, num_blocks), num_blocks + 1) if num_blocks % count == 0)


def slotted(blocks: Sequence[Block]) -> Sequence[Block]:
    """Return the blocks to stream: all, or all but the last one if few slots do not divide their number."""
    is_even = num_slots(len(blocks)) <= _MAX_SLOTS if blocks else True
    return blocks if is_even else blocks[:-1]


class BlockSlots:
    """Copies each block's weights to the device before its forward pass, and then frees its slot.

    Blocks are called in order, in one pass at a time; an interrupted pass only wastes the copies that it
    started. Submodules that are `apart` keep their weights where they are.
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
        self._weights = [HostWeights(block, device, copier, apart) for block in blocks]
        size = max(map(len, self._weights))
        self._slots = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(slots)]
        self._content: list[int | None] = [None] * slots
        for slot in self._slots:
            copier.free(slot)
        for index, (block, weights) in enumerate(zip(blocks, self._weights, strict=True)):
            weights.become_views_of(self._slots[index % slots])
            self._hook(block, index)

    @property
    def device_bytes(self) -> int:
        """The bytes of all slots."""
        return sum(map(len, self._slots))

    @property
    def bytes_per_pass(self) -> int:
        """The bytes that a forward pass copies to the device."""
        return sum(map(len, self._weights))

    def _hook(self, block: nn.Module, index: int) -> None:
        def before(_block: nn.Module, _args: Any) -> None:
            self._before(index)

        def after(_block: nn.Module, _args: Any, _output: Any) -> None:
            self._after(index)

        block.register_forward_pre_hook(before)
        block.register_forward_hook(after)

    def _before(self, index: int) -> None:
        for ahead in range(len(self._slots)):
            self._bring((index + ahead) % len(self._weights))
        self._copier.wait(self._slots[index % len(self._slots)])

    def _bring(self, index: int) -> None:
        at = index % len(self._slots)
        if self._content[at] == index:
            return
        if self._content[at] is not None:  # left by a pass that broke off
            self._copier.free(self._slots[at])
        self._copier.begin(self._slots[at], self._weights[index].run)
        self._content[at] = index

    def _after(self, index: int) -> None:
        at = index % len(self._slots)
        self._copier.free(self._slots[at])
        self._content[at] = None
