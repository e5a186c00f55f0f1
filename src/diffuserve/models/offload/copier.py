"""Copies of a block's weights from the host to the device, while other blocks compute."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Copier(Protocol):
    """Copies runs of bytes into slots of device memory.

    Copies into one slot arrive in the order in which they begin; those into others in any order.
    """

    def host_run(self, num_bytes: int) -> Tensor:
        """Return host memory of which copies can begin without a wait."""
        ...

    def begin(self, slot: Tensor, source: Tensor) -> None:
        """Begin a copy to the front of a slot, which starts once the slot was freed."""
        ...

    def wait(self, slot: Tensor) -> None:
        """Have the work that follows wait for the last copy into the slot."""
        ...

    def used(self, slot: Tensor) -> None:
        """Say that a copy into the slot must wait for the work so far; that which follows may read it too."""
        ...

    def free(self, slot: Tensor) -> None:
        """Say that nothing that follows reads the slot's content."""
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
    """Copies from pinned memory on a stream of its own; no call makes the host wait."""

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
    """Return what copies to a device."""
    return CudaCopier(device) if device.type == "cuda" else SyncCopier()
