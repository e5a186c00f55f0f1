"""The memory of processes, and what this container or machine has of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import psutil

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Memory:
    """Bytes in use, and the bytes that may be used; a limit of 0 is no limit."""

    used: int
    limit: int

    def is_short(self, fraction: float) -> bool:
        return self.limit > 0 and self.used >= fraction * self.limit


ReadMemory = Callable[[Sequence[int]], Memory]
"""Returns the memory of this process and of those with the given ids."""


def read_memory(pids: Sequence[int]) -> Memory:
    """Return the resident memory of this process and of others, and the container's or machine's limit."""
    used = 0
    for pid in (None, *pids):
        try:
            used += _process(pid).memory_info().rss
        except psutil.NoSuchProcess:
            continue  # the process has just ended
    return Memory(used, memory_limit())


def memory_limit() -> int:
    """Return the bytes that this container or, without a limit, this machine has."""
    machine = _machine()
    try:
        text = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return machine
    return min(machine, int(text)) if text.isdecimal() else machine


@lru_cache(maxsize=16)
def _process(pid: int | None) -> psutil.Process:
    """Return a process, which is looked up once: memory is read whenever a job comes or goes."""
    return psutil.Process(pid)


@cache
def _machine() -> int:
    return int(psutil.virtual_memory().total)
