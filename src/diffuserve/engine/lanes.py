"""How denoising and decoding share a device.

On a CPU the cores are seats. While both lanes have work each has half of them; a lane whose
neighbour is idle has all. The tasks of a lane run side by side, each on one thread that uses one
core: measured on small models, two such threads do 1.7 times the work of one, while one thread
whose every operation is spread over both cores does 1.1-1.4 times. Only a lane with fewer
tasks than seats spreads their operations ("wide"), and only on one thread of the process, because a
second OpenMP pool would make both of them sleep between operations instead of spinning. Threads that
wait for one another at every operation also lose all when something else wants the cores, up to a
hundred times; so when a wide run took far longer than expected, the next ones are not spread.

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


_STALLED = 4.0  # times the expected seconds
_MAX_STALLS = 3  # in a row; a single one may be a kernel's first use
_PAUSE_SECONDS = 2.0


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
        self,
        lane: Lane,
        tasks: Sequence[Task[T]],
        expected_seconds: float | None = None,
        after: object = None,
    ) -> LaneRun[T]:
        """Run tasks and wait for them.

        Seats without a task may help with the others' operations; `expected_seconds`, where known,
        tell a stall. `after` is what `mark` gave where the input was issued.
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


class _StallGuard:
    """Notices that wide runs stall, and has them pause for a while."""

    def __init__(self) -> None:
        self._stalls = 0
        self._pause_until = 0.0

    def judge(self, seconds: float, expected_seconds: float | None) -> None:
        stalled = expected_seconds is not None and seconds > _STALLED * expected_seconds
        self._stalls = self._stalls + 1 if stalled else 0
        if self._stalls >= _MAX_STALLS:
            self._pause_until = time.perf_counter() + _PAUSE_SECONDS

    def is_pausing(self) -> bool:
        return time.perf_counter() < self._pause_until


class CpuLanes:
    def __init__(self, num_threads: int, may_spread: bool) -> None:
        self._num_threads = num_threads
        self._busy = _Busy()
        self._stalls = _StallGuard()
        self._pools = {
            lane: ThreadPoolExecutor(
                num_threads, f"diffuserve-{lane}", initializer=_use_threads, initargs=(1,)
            )
            for lane in Lane
        }
        self._wide = ThreadPoolExecutor(1, "diffuserve-wide") if may_spread else None
        self._wide_is_free = threading.Lock()

    def set_busy(self, lane: Lane, busy: bool) -> None:
        self._busy.set(lane, busy)

    def num_seats(self, lane: Lane) -> int:
        return max(1, int(self._num_threads * self._busy.share(lane)))

    def run(
        self,
        lane: Lane,
        tasks: Sequence[Task[T]],
        expected_seconds: float | None = None,
        after: object = None,
    ) -> LaneRun[T]:
        seats, share = self.num_seats(lane), self._busy.share(lane)
        start = time.perf_counter()
        if len(tasks) < seats and self._take_wide():
            assert self._wide is not None
            try:
                results = self._wide.submit(_run_wide, tasks, seats).result()
            finally:
                self._wide_is_free.release()
            self._stalls.judge(time.perf_counter() - start, expected_seconds)
        else:
            results = list(self._pools[lane].map(_call, tasks))
        return LaneRun(results, time.perf_counter() - start, share)

    def _take_wide(self) -> bool:
        may_spread = self._wide is not None and not self._stalls.is_pausing()
        return may_spread and self._wide_is_free.acquire(blocking=False)

    def mark(self) -> object:
        return None

    def close(self) -> None:
        for pool in (*self._pools.values(), self._wide):
            if pool is not None:
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
        self,
        lane: Lane,
        tasks: Sequence[Task[T]],
        expected_seconds: float | None = None,
        after: object = None,
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
