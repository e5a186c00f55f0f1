"""Modules that share device memory: one runs at a time, and its weights are swapped in before."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from diffuserve.models.offload.copier import Copier
from diffuserve.models.offload.host_weights import HostWeights


class FairLock:
    """A lock that threads acquire in the order of their requests, so that none starves."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()  # the first one has the lock

    def __enter__(self) -> None:
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                self._changed.wait_for(lambda: self._waiting[0] is ticket)
            except BaseException:  # an interrupt
                self._waiting.remove(ticket)
                self._changed.notify_all()
                raise

    def __exit__(self, *_error: object) -> None:
        with self._changed:
            self._waiting.popleft()
            self._changed.notify_all()


class ModuleSwap:
    """Device memory that holds the weights of one module at a time, until another one is swapped in."""

    def __init__(self, modules: Sequence[nn.Module], device: torch.device, copier: Copier) -> None:
        self._copier, self._lock = copier, FairLock()
        self._weights = {module: HostWeights(module, device, copier) for module in modules}
        size = max(map(len, self._weights.values()))
        self._memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._content: nn.Module | None = None
        copier.free(self._memory)
        for weights in self._weights.values():
            weights.become_views_of(self._memory)

    @property
    def device_bytes(self) -> int:
        return len(self._memory)

    def num_bytes(self, module: nn.Module) -> int:
        """Return the bytes that are copied to swap a module in, unless it is in memory already."""
        return len(self._weights[module])

    @contextmanager
    def of(self, module: nn.Module) -> Iterator[None]:
        """Keep a module's weights on the device within the block; others wait."""
        with self._lock:
            if self._content is not module:
                self._copier.begin(self._memory, self._weights[module].run)
                self._content = module
            self._copier.wait(self._memory)
            try:
                yield
            finally:
                self._copier.used(self._memory)


def one_by_one(
    module: nn.Module, entries: Sequence[str], turn: Callable[[], AbstractContextManager[None]]
) -> None:
    """Swap a module in for each call of its methods `entries`."""
    for name in entries:
        setattr(module, name, _in_turn(getattr(module, name), turn))


def _in_turn(method: Callable[..., Any], turn: Callable[[], AbstractContextManager[None]]) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with turn():
            return method(*args, **kwargs)

    return call
