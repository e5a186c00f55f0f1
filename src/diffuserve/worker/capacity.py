"""The capacity that a worker may claim. Pure, but for the reading of memory."""

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
"""Returns the memory of the agent and of the engines with the given process ids."""


@dataclass(frozen=True)
class Capacity:
    """The jobs, and the tokens of a step, that may be claimed."""

    num_jobs: int
    num_tokens: int


NO_CAPACITY = Capacity(0, 0)


@dataclass(frozen=True)
class Room:
    """The models that jobs may be claimed for, those of them that are resident, and how much of each."""

    capacity: Capacity
    models: tuple[str, ...] = ()
    resident_models: tuple[str, ...] = ()


NO_ROOM = Room(NO_CAPACITY)


def free_capacity(
    max_jobs: int, token_budget: int, tokens_in_engine: list[int], num_finishing: int
) -> Capacity:
    """Return one step's worth beyond the running step, so that the engine never waits for the network.

    A job that is larger than a step's worth counts as one: while it has its turns, others may join it.
    `tokens_in_engine` are the step tokens of each job in the engine. `num_finishing` jobs have left it
    and are being uploaded; at most four times `max_jobs` may pile up in all. Without a free token no job
    may be claimed either, since a claim always returns at least one job.
    """
    tokens = 2 * token_budget - sum(min(held, token_budget) for held in tokens_in_engine)
    jobs = min(max_jobs - len(tokens_in_engine), 4 * max_jobs - len(tokens_in_engine) - num_finishing)
    return Capacity(jobs, tokens) if jobs > 0 and tokens > 0 else NO_CAPACITY


def read_memory(engine_pids: Sequence[int]) -> Memory:
    """Return the resident memory of this process and its engines, and the container's or machine's limit."""
    used = 0
    for pid in (None, *engine_pids):
        try:
            used += _process(pid).memory_info().rss
        except psutil.NoSuchProcess:
            continue  # the engine has just died
    return Memory(used, memory_limit())


@lru_cache(maxsize=16)
def _process(pid: int | None) -> psutil.Process:
    """Return a process, which is looked up once: memory is read whenever a job comes or goes."""
    return psutil.Process(pid)


@cache
def _machine() -> int:
    return int(psutil.virtual_memory().total)


def memory_limit() -> int:
    """Return the bytes that this container or, without a limit, this machine has."""
    machine = _machine()
    try:
        text = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return machine
    return min(machine, int(text)) if text.isdecimal() else machine
