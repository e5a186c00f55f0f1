"""Durations, to be compared with others of the same test run."""

import time
from collections.abc import Callable

MAX_GROWTH = 24.0
"""Limit of `growth` for what should be linear, between 8 and 64 with room for a busy machine."""


def cpu_seconds(work: Callable[[], object], times: int = 5) -> float:
    """Return the CPU time of the process for the quickest of several runs, after one to warm up."""
    work()
    return min(_once(work) for _ in range(times))


def growth(work: Callable[[str], object], text: str) -> float:
    """Return how many times as long `work` takes for eight times the text: 8 if linear, 64 if quadratic."""
    return cpu_seconds(lambda: work(text * 8)) / cpu_seconds(lambda: work(text))


def _once(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start
