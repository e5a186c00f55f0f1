"""How denoising and decoding share a device.

On a CPU the cores are seats. While both lanes have work each has half of them; a lane whose
neighbour is idle has all. The tasks of a lane run side by side, each on one thread that uses one
core: measured on small models, two such threads do 1.7 times the work of one, while one thread
whose every operation is spread over both cores does 1.1-1.4 times. Only a lane with fewer and
large tasks spreads their operations over its seats ("wide"); small operations gain little by it and
lose all when the machine is busy, because their threads wait for one another at each. And only one
thread of the process does it, because a second OpenMP pool would make both of them sleep between
operations instead of spinning.

On CUDA each lane is a stream of its own.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch

T = TypeVar("T")
Task = Callable[[], T]


class Lane(StrEnum):
    DENOISE = "denoise"
    DECODE = "decode"


@dataclass(frozen=True)
class LaneRun(Generic[T]):
    """What the tasks gave, how long they took together, and the share of the device they held.

    The share is 1 unless the other lane had work at the same time.
    """

    results: list[T]
    seconds: float
    share: float

    @property
    def device_seconds(self) -> float:
        return self.seconds * self.share


@runtime_checkable
class Lanes(Protocol):
    def set_busy(self, lane: Lane, busy: bool) -> None:
        """Say whether a lane has work, now or waiting."""
        ...

    def num_seats(self, lane: Lane) -> int:
        """How many tasks of this lane would run side by side now."""
        ...

    def run(
        self, lane: Lane, tasks: Sequence[Task[T]], spread: bool = False, after: object = None
    ) -> LaneRun[T]:
        """Run tasks and wait for them.

        `spread` lets seats without a task help the others' operations, which pays for large ones;
        `after` is what `mark` gave where the input was issued.
        """
        ...

    def mark(self) -> object: ...

    def close(self) -> None: ...


def make_lanes(device: torch.device, num_threads: int | None, deterministic: bool) -> Lanes:
    """With `deterministic` no operation is ever spread over cores, so none is cut differently."""
    if device.type == "cuda":
        return CudaLanes(device)
    return CpuLanes(num_threads or torch.get_num_threads(), may_spread=not deterministic)


class _Busy:
    """Which lanes have work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes: set[Lane] = set()

    def set(self, lane: Lane, busy: bool) -> None:
        with self._lock:
            (self._lanes.add if busy else self._lanes.discard)(lane)

    def share(self, lane: Lane) -> float:
        """Of the device: all of it, or half while the other lane has work."""
        with self._lock:
            return 0.5 if self._lanes - {lane} else 1.0


class CpuLanes:
    def __init__(self, num_threads: int, may_spread: bool) -> None:
        self._num_threads = num_threads
        self._may_spread = may_spread
        self._busy = _Busy()
        self._pools = {
            lane: ThreadPoolExecutor(
                num_threads, f"diffuserve-{lane}", initializer=_use_threads, initargs=(1,)
            )
            for lane in Lane
        }
        self._wide = ThreadPoolExecutor(1, "diffuserve-wide")
        self._wide_is_free = threading.Lock()

    def set_busy(self, lane: Lane, busy: bool) -> None:
        self._busy.set(lane, busy)

    def num_seats(self, lane: Lane) -> int:
        return max(1, int(self._num_threads * self._busy.share(lane)))

    def run(
        self, lane: Lane, tasks: Sequence[Task[T]], spread: bool = False, after: object = None
    ) -> LaneRun[T]:
        seats = self.num_seats(lane)
        spread = spread and self._may_spread and len(tasks) < seats
        share = self._busy.share(lane)
        start = time.perf_counter()
        if spread and self._wide_is_free.acquire(blocking=False):
            try:
                results = self._wide.submit(_run_wide, tasks, seats).result()
            finally:
                self._wide_is_free.release()
        else:
            results = list(self._pools[lane].map(_call, tasks))
        return LaneRun(results, time.perf_counter() - start, share)

    def mark(self) -> object:
        return None

    def close(self) -> None:
        for pool in (*self._pools.values(), self._wide):
            pool.shutdown()


class CudaLanes:
    def __init__(self, device: torch.device) -> None:
        self._streams = {lane: torch.cuda.Stream(device) for lane in Lane}
        self._busy = _Busy()

    def set_busy(self, lane: Lane, busy: bool) -> None:
        self._busy.set(lane, busy)

    def num_seats(self, lane: Lane) -> int:
        return 1

    def run(
        self, lane: Lane, tasks: Sequence[Task[T]], spread: bool = False, after: object = None
    ) -> LaneRun[T]:
        stream = self._streams[lane]
        if isinstance(after, torch.cuda.Event):
            stream.wait_event(after)
        share = self._busy.share(lane)
        start = time.perf_counter()
        with torch.cuda.stream(stream):
            results = [task() for task in tasks]
        stream.synchronize()  # so that the seconds are the device's, and decisions see finished steps
        return LaneRun(results, time.perf_counter() - start, share)

    def mark(self) -> object:
        event = torch.cuda.Event()
        event.record()
        return event

    def close(self) -> None:
        pass


def _use_threads(num_threads: int) -> None:
    # Reading the number first settles torch's own per-thread default, which would undo the setting.
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)


def _run_wide(tasks: Sequence[Task[T]], num_threads: int) -> list[T]:
    _use_threads(num_threads)
    return [task() for task in tasks]


def _call(task: Task[T]) -> T:
    return task()
