"""Memory of passes: measured where one is larger than all before it, and estimated from that for others."""

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

T = TypeVar("T")

_MARGIN = 1.5  # for what kernels take beside their results, and for shapes that need more by size


class MeasuredMemory:
    """Bytes of passes by their size, in tokens or in pixels. Safe to use from several threads.

    Until the first measurement a pass takes `guess` bytes of each. The figure of the largest pass counts,
    since small ones have a large constant part.
    """

    def __init__(self, meter: "PeakMeter", guess: int) -> None:
        self._meter, self._rate = meter, float(guess)
        self._largest, self._longest = 0, 0
        self._lock = threading.Lock()

    def bytes_of(self, size: int) -> int:
        """Return the bytes that a pass of this size should take at most."""
        return int(size * self._rate * _MARGIN)

    def has_measured(self, length: int) -> bool:
        """Return whether a sequence or picture of this length has been measured, or a longer one."""
        return length <= self._longest

    def run(self, size: int, length: int, work: Callable[[], Mapping[Any, T]]) -> Mapping[Any, T]:
        """Do work whose failures are returned, and learn from it if nothing as large was measured before.

        `size` is that of all its requests, and `length` that of the longest of them.
        """
        with self._lock:
            is_largest = size > 0 and (size > self._largest or length > self._longest)
        with self._meter.measure(is_largest) as peak:
            failures = work()
        if is_largest and not failures and peak.num_bytes:
            self._learn(size, length, peak.num_bytes)
        return failures

    def _learn(self, size: int, length: int, num_bytes: int) -> None:
        with self._lock:
            rate = num_bytes / size
            self._rate = rate if size >= self._largest else max(rate, self._rate)
            self._largest, self._longest = max(size, self._largest), max(length, self._longest)


class Peak:
    """The largest number of bytes that were allocated at a time, above those of the beginning."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.is_shared = False  # with other work on the device


class PeakMeter:
    """Measures the peaks of work that several threads do on a device.

    A thread's results are counted as torch makes them, whatever other threads do. On CUDA the allocator also
    knows what kernels take for themselves, but not for whom: it is asked where nothing else ran.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._lock = device, threading.Lock()
        self._running: set[Peak] = set()

    @contextmanager
    def measure(self, is_wanted: bool = True) -> Iterator[Peak]:
        """Measure what is done within, on this thread."""
        peak = Peak()
        self._enter(peak, is_wanted)
        before = self._allocated() if is_wanted else 0
        results = _Results()
        try:
            if is_wanted:
                with results:
                    yield peak
            else:
                yield peak
        finally:
            with self._lock:
                self._running.discard(peak)
        own = 0 if peak.is_shared or not is_wanted else self._peak_allocated() - before
        peak.num_bytes = max(results.peak, own)

    def _enter(self, peak: Peak, is_wanted: bool) -> None:
        with self._lock:
            for other in self._running:
                other.is_shared = peak.is_shared = True
            self._running.add(peak)
            if is_wanted and not peak.is_shared and self._device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self._device)

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self._device) if self._device.type == "cuda" else 0

    def _peak_allocated(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0


class _Results(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make on this thread, and the most at a time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._now = 0
        self._sizes: dict[int, int] = {}  # of storages, by their addresses; 0 of those that were there before
        self._references: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor):
                self._count(value, is_new=False)
        result = func(*args, **kwargs)
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self._count(value, is_new=True)
        return result

    def _count(self, tensor: Tensor, is_new: bool) -> None:
        if tensor.layout is not torch.strided:  # weights in an order of oneDNN's have no storage
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes() if is_new else 0
        self._references[key] = weakref.ref(storage, lambda _gone: self._forget(key))
        self._now += self._sizes[key]
        self.peak = max(self.peak, self._now)

    def _forget(self, key: int) -> None:
        self._references.pop(key, None)
        self._now -= self._sizes.pop(key, 0)
