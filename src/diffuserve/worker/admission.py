"""How much a worker may claim. Pure, but for the reading of memory."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Memory:
    """Bytes in use, and the bytes there are; a limit of 0 is no limit."""

    used: int
    limit: int

    def is_short(self, fraction: float) -> bool:
        return self.limit > 0 and self.used >= fraction * self.limit


ReadMemory = Callable[[int | None], Memory]
"""From the engine's process id to what agent and engine use."""


@dataclass(frozen=True)
class Room:
    """Jobs, and tokens of a step, that may be claimed."""

    num_jobs: int
    num_tokens: int


NO_ROOM = Room(0, 0)


def room_left(max_jobs: int, token_budget: int, tokens_in_engine: list[int], num_finishing: int) -> Room:
    """One step's worth beyond the running one, so that the engine never waits for the network.

    Without room for a token there is room for no job: a claim always gives at least one.

    `num_finishing` jobs have left the engine and are being uploaded; only so many may pile up.
    """
    tokens = 2 * token_budget - sum(tokens_in_engine)
    jobs = min(max_jobs - len(tokens_in_engine), 4 * max_jobs - len(tokens_in_engine) - num_finishing)
    return Room(jobs, tokens) if jobs > 0 and tokens > 0 else NO_ROOM


def read_memory(engine_pid: int | None) -> Memory:
    """Of this process and its engine, against the container's or the machine's limit."""
    used = 0
    for pid in (None, engine_pid) if engine_pid else (None,):
        try:
            used += psutil.Process(pid).memory_info().rss
        except psutil.NoSuchProcess:
            continue  # the engine has just died
    return Memory(used, _limit())


def _limit() -> int:
    machine = int(psutil.virtual_memory().total)
    try:
        text = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return machine
    return min(machine, int(text)) if text.isdecimal() else machine
