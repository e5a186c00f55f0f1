"""CPU seconds of a benchmark whose processes are left by their parents."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import psutil

from diffuserve.bench.machine_load import MachineLoad, read_cpu

_LOOK_SECONDS = 0.5


class OwnSeconds:
    """CPU seconds of this process and of all beneath it, as they were last seen, whoever waited for them.

    Nobody waits for the workers of a node of Ray, so that no parent counts what they took. What ends between
    two looks is counted as it was at the first one.
    """

    def __init__(self) -> None:
        self._before = replace(read_cpu(), own_seconds=0.0)
        self._seconds: dict[tuple[int, float], float] = {}
        self._earlier = dict(_seconds_beneath())

    def look(self) -> None:
        """Note what each process has taken so far."""
        self._seconds.update(_seconds_beneath())

    @property
    def spent(self) -> float:
        """Seconds that all of them have taken since this was made, as far as they were seen."""
        return sum(seconds - self._earlier.get(process, 0.0) for process, seconds in self._seconds.items())

    def load(self) -> MachineLoad:
        """Return what else ran since this was made."""
        self.look()
        after = replace(read_cpu(), own_seconds=self.spent)
        return MachineLoad.between(self._before, after, psutil.cpu_count() or 1)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at the processes again and again, on a thread of its own, while the block runs."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(_LOOK_SECONDS):
                self.look()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()


def _seconds_beneath() -> Iterator[tuple[tuple[int, float], float]]:
    own = psutil.Process(os.getpid())
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            times = process.cpu_times()
            yield (process.pid, process.create_time()), times.user + times.system
