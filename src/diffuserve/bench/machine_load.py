"""What else ran on the machine while something was measured on it."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

_BUSY_SHARE = 0.1
"""Of all cores: more than a machine that only measures spends on its own services."""


@dataclass(frozen=True)
class CpuReading:
    """The CPU seconds of the whole machine and of what is measured there, at a moment."""

    at: float
    machine_seconds: float
    own_seconds: float
    load: float


@dataclass(frozen=True)
class MachineLoad:
    """The load average before and after a measurement, and the cores that other work took meanwhile."""

    load_before: float
    load_after: float
    other_cores: float
    num_cores: int

    @classmethod
    def between(cls, before: CpuReading, after: CpuReading, num_cores: int) -> "MachineLoad":
        """Return what two readings tell of the time between them."""
        machine = after.machine_seconds - before.machine_seconds
        others = machine - (after.own_seconds - before.own_seconds)
        seconds = max(after.at - before.at, 1e-9)
        return cls(before.load, after.load, max(0.0, others / seconds), num_cores)

    @property
    def is_busy(self) -> bool:
        """Tell whether other work took so much that times say little."""
        return self.other_cores > _BUSY_SHARE * self.num_cores

    @property
    def warning(self) -> str | None:
        """A sentence to know before times are believed; None if the machine was left alone."""
        if not self.is_busy:
            return None
        return (
            f"other processes took {self.other_cores:.2f} of the {self.num_cores} cores meanwhile: times "
            "measured beside other work say little; end it and measure again"
        )


class MachineLoadMeter:
    """Measures from its making to `read`.

    What is measured are this process, its descendants, and what belongs to the processes that `also` names:
    their descendants and their process groups, such as a server's workers.
    """

    def __init__(self, also: Sequence[int] = ()) -> None:
        self._also = also
        self._before = read_cpu(also)

    def read(self) -> MachineLoad:
        """Return what else ran so far."""
        return MachineLoad.between(self._before, read_cpu(self._also), psutil.cpu_count() or 1)


def read_cpu(also: Sequence[int] = ()) -> CpuReading:
    """Return the CPU seconds so far; of ended processes, those that a living parent has waited for."""
    spent = psutil.cpu_times()._asdict()
    idle = {"idle", "iowait", "guest", "guest_nice"}  # what guests take is in `user` already
    machine = sum(seconds for name, seconds in spent.items() if name not in idle)
    own = {process.pid: process for pid in (os.getpid(), *also) for process in _tree(pid)}
    own |= {process.pid: process for process in _groups_of(also)}
    return CpuReading(time.monotonic(), machine, sum(map(_cpu_seconds, own.values())), os.getloadavg()[0])


def listeners(port: int) -> list[int]:
    """Return the processes of this machine that listen on a port, as far as the system tells us."""
    with suppress(psutil.AccessDenied):
        found = psutil.net_connections(kind="tcp")
        return [
            each.pid
            for each in found
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid
        ]
    return []


def _tree(pid: int) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)


def _groups_of(pids: Sequence[int]) -> Iterator[psutil.Process]:
    groups = set(filter(None, map(_group, pids)))
    if groups:
        yield from (process for process in psutil.process_iter() if _group(process.pid) in groups)


def _group(pid: int) -> int | None:
    with suppress(OSError):
        return os.getpgid(pid)
    return None


def _cpu_seconds(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0
