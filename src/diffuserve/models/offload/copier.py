"""Copies of a block's weights from the host to the device, while other blocks compute."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Copier(Protocol):
    """Copies runs of bytes into slots of device memory.

    Copies into one slot finish in the order in which they begin; copies into different slots in any order.
    """

    def host_run(self, num_bytes: int) -> Tensor:
        """Return host memory from which copies start without a wait."""
        ...

    def begin(self, slot: Tensor, source: Tensor) -> None:
        """Queue a copy to the front of a slot; it starts once the slot is free."""
        ...

    def wait(self, slot: Tensor) -> None:
        """Make later work wait for the last copy into the slot."""
        ...

    def used(self, slot: Tensor) -> None:
        """Make copies into the slot wait for the work so far; later work may still read the slot."""
        ...

    def free(self, slot: Tensor) -> None:
        """Declare that no later work reads the slot's content."""
        ...


class SyncCopier:
    """Copies at once: for devices that have no streams."""

    def host_run(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def begin(self, slot: Tensor, source: Tensor) -> None:
        slot[: len(source)].copy_(source)

    def wait(self, slot: Tensor) -> None:
        """Return at once: the copy is done."""

    def used(self, slot: Tensor) -> None:
        """Return at once: the next copy begins after the work before it."""

    def free(self, slot: Tensor) -> None:
        """Return at once: the next copy begins after the work before it."""


class CudaCopier:
    """Copies from pinned memory on a stream of its own; no call blocks the host."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._copied: dict[int, torch.cuda.Event] = {}
        self._freed: dict[int, torch.cuda.Event] = {}

    def host_run(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def begin(self, slot: Tensor, source: Tensor) -> None:
        self._stream.wait_event(self._freed[id(slot)])
        with torch.cuda.stream(self._stream):
            slot[: len(source)].copy_(source, non_blocking=True)
        self._copied[id(slot)] = self._stream.record_event()

    def wait(self, slot: Tensor) -> None:
        torch.cuda.current_stream(slot.device).wait_event(self._copied[id(slot)])

    def used(self, slot: Tensor) -> None:
        self._freed[id(slot)] = torch.cuda.current_stream(slot.device).record_event()

    def free(self, slot: Tensor) -> None:
        self.used(slot)


def copier_for(device: torch.device) -> Copier:
    """Return the copier for a device."""
    return CudaCopier(device) if device.type == "cuda" else SyncCopier()
