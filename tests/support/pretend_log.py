"""The record of what a pretended CUDA device was asked to do."""

import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import diffuserve

_PACKAGE = f"{Path(diffuserve.__path__[0])}/"


@dataclass(frozen=True)
class Sync:
    """A moment at which the host waits for the device, and the function that makes it wait."""

    kind: str
    place: str


class CudaLog:
    """Counts kernels by their operation's name and by their stream's, and syncs. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.kernels: Counter[str] = Counter()
        self.streams: Counter[str] = Counter()
        self.syncs: Counter[Sync] = Counter()

    def clear(self) -> None:
        with self._lock:
            self.kernels.clear()
            self.streams.clear()
            self.syncs.clear()

    def kernel(self, name: str, stream: str) -> None:
        with self._lock:
            self.kernels[name] += 1
            self.streams[stream] += 1

    def sync(self, kind: str) -> None:
        place = _place(sys._getframe(1))
        with self._lock:
            self.syncs[Sync(kind, place)] += 1

    def syncs_by_kind(self) -> dict[str, int]:
        """Return how often the host waited: for a stream, for a copy to the host, or to the device…"""
        kinds: Counter[str] = Counter()
        with self._lock:
            for sync, count in self.syncs.items():
                kinds[sync.kind] += count
        return dict(kinds)


def _place(frame: FrameType | None) -> str:
    """Return file and function of the nearest caller in this package, outside this pretence."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            return f"{file.removeprefix(_PACKAGE)}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"
