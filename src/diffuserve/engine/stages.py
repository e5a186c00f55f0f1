"""The two stages that share a device, denoising and decoding, and the threads or streams they run on.

On a CPU each core is one core slot. The tasks of a stage run side by side, each on one thread that uses one
core: measured on small models, two such threads do 1.7 times the work of one, while one thread whose every
operation is spread over both cores does 1.1-1.4 times. Denoising always has all slots. Decoding has half of
them while there are steps, and all when there are none: then more threads than cores want to run, and no core
waits for a step's last micro-batch, or for images to decode.

Only a stage with fewer tasks than its share of the core slots runs intra-op parallel, that is with each
operation spread over several cores, and only on one thread of the process, because a second OpenMP pool would
make both of them sleep between operations instead of spinning. Threads that wait for one another at every
operation also slow down up to a hundredfold when another process competes for the cores. So after an intra-op
parallel run that took far longer than expected, the next runs use one core for each task.

On CUDA each stage has a stream of its own.
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


class Stage(StrEnum):
    """A kind of work on the device. Text encoding belongs to `DENOISE`: it precedes the first step."""

    DENOISE = "denoise"
    DECODE = "decode"


@dataclass(frozen=True)
class StageRun(Generic[T]):
    """The tasks' results, the seconds they took together, and the share of the device that they held.

    `share` lies in 0…1; it is 1 unless the other stage had work at the same time.
    """

    results: list[T]
    seconds: float
    share: float

    @property
    def device_seconds(self) -> float:
        return self.seconds * self.share


@runtime_checkable
class StageExecutor(Protocol):
    """Runs the tasks of both stages on one device; safe to call from the threads of both."""

    def set_busy(self, stage: Stage, busy: bool) -> None:
        """Record whether a stage has work, running or waiting."""
        ...

    def num_core_slots(self, stage: Stage) -> int:
        """Return how many tasks of this stage could run side by side now; at least 1."""
        ...

    def run(
        self,
        stage: Stage,
        tasks: Sequence[Task[T]],
        expected_seconds: float | None = None,
        after: object = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> StageRun[T]:
        """Run tasks and wait for them; raise the first exception that one of them raised.

        Core slots without a task may help with the others' operations. A run that takes several times
        `expected_seconds`, if given, counts as a stall. `after` is the value that `mark` returned when the
        tasks' input was issued. `meanwhile` is called while the device works on the tasks, but not on a CPU,
        where it would compete with them.
        """
        ...

    def mark(self) -> object:
        """Return a token for the device work that this thread has issued so far."""
        ...

    def close(self) -> None:
        """Stop the threads once their current tasks are done."""
        ...


def make_stage_executor(device: torch.device, num_threads: int | None, deterministic: bool) -> StageExecutor:
    """Build the executor for a device; `num_threads` are core slots, by default torch's own number.

    With `deterministic` no operation is ever spread over cores, so each is always computed in the same order.
    """
    if device.type == "cuda":
        return CudaStageExecutor(device)
    return CpuStageExecutor(num_threads or torch.get_num_threads(), allow_intra_op=not deterministic)


class _BusyStages:
    """The stages that have work, shared by their threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages: set[Stage] = set()

    def set(self, stage: Stage, busy: bool) -> None:
        with self._lock:
            (self._stages.add if busy else self._stages.discard)(stage)

    def share(self, stage: Stage) -> float:
        """Return the stage's share of the device: 1, or 0.5 while the other stage has work."""
        with self._lock:
            return 0.5 if self._stages - {stage} else 1.0


class _StallGuard:
    """Detects that intra-op parallel runs stall, and pauses them for a while."""

    def __init__(self) -> None:
        self._stalls = 0
        self._pause_until = 0.0

    def observe(self, seconds: float, expected_seconds: float | None) -> None:
        stalled = expected_seconds is not None and seconds > _STALLED * expected_seconds
        self._stalls = self._stalls + 1 if stalled else 0
        if self._stalls >= _MAX_STALLS:
            self._pause_until = time.perf_counter() + _PAUSE_SECONDS

    def is_pausing(self) -> bool:
        return time.perf_counter() < self._pause_until


class CpuStageExecutor:
    """A pool of one-core threads for each stage, and one thread that runs intra-op parallel."""

    def __init__(self, num_threads: int, allow_intra_op: bool) -> None:
        self._num_threads = num_threads
        self._busy = _BusyStages()
        self._stalls = _StallGuard()
        self._pools = {
            stage: ThreadPoolExecutor(
                num_threads, f"diffuserve-{stage}", initializer=_use_threads, initargs=(1,)
            )
            for stage in Stage
        }
        self._intra_op = ThreadPoolExecutor(1, "diffuserve-intra-op") if allow_intra_op else None
        self._intra_op_is_free = threading.Lock()

    def set_busy(self, stage: Stage, busy: bool) -> None:
        self._busy.set(stage, busy)

    def num_core_slots(self, stage: Stage) -> int:
        return self._num_threads if stage is Stage.DENOISE else self._own_cores(stage)

    def run(
        self,
        stage: Stage,
        tasks: Sequence[Task[T]],
        expected_seconds: float | None = None,
        after: object = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> StageRun[T]:
        cores, share = self._own_cores(stage), self._busy.share(stage)
        start = time.perf_counter()
        if len(tasks) < cores and self._acquire_intra_op():
            assert self._intra_op is not None
            try:
                results = self._intra_op.submit(_run_intra_op, tasks, cores).result()
            finally:
                self._intra_op_is_free.release()
            self._stalls.observe(time.perf_counter() - start, expected_seconds)
        else:
            results = list(self._pools[stage].map(_call, tasks))
        return StageRun(results, time.perf_counter() - start, share)

    def _own_cores(self, stage: Stage) -> int:
        return max(1, int(self._num_threads * self._busy.share(stage)))

    def _acquire_intra_op(self) -> bool:
        is_allowed = self._intra_op is not None and not self._stalls.is_pausing()
        return is_allowed and self._intra_op_is_free.acquire(blocking=False)

    def mark(self) -> object:
        return None

    def close(self) -> None:
        for pool in (*self._pools.values(), self._intra_op):
            if pool is not None:
                pool.shutdown()


class CudaStageExecutor:
    """A CUDA stream for each stage; tasks are launched from the calling thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams = {stage: torch.cuda.Stream(device) for stage in Stage}
        torch.cuda.synchronize(device)  # the weights were converted on another stream
        self._busy = _BusyStages()

    def set_busy(self, stage: Stage, busy: bool) -> None:
        self._busy.set(stage, busy)

    def num_core_slots(self, stage: Stage) -> int:
        return 1

    def run(
        self,
        stage: Stage,
        tasks: Sequence[Task[T]],
        expected_seconds: float | None = None,
        after: object = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> StageRun[T]:
        stream = self._streams[stage]
        if isinstance(after, torch.cuda.Event):
            stream.wait_event(after)
        share = self._busy.share(stage)
        start = time.perf_counter()
        # Setting only the stream would keep the thread's default device, and create a context there.
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            results = [task() for task in tasks]
            if meanwhile is not None:
                meanwhile()
        stream.synchronize()  # so that the device's time is measured, and decisions see finished steps
        return StageRun(results, time.perf_counter() - start, share)

    def mark(self) -> object:
        return self._streams[Stage.DENOISE].record_event()

    def close(self) -> None:
        pass


def _use_threads(num_threads: int) -> None:
    # Reading the number first settles torch's own per-thread default, which would undo the setting.
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)


def _run_intra_op(tasks: Sequence[Task[T]], num_threads: int) -> list[T]:
    _use_threads(num_threads)
    return [task() for task in tasks]


def _call(task: Task[T]) -> T:
    return task()
