"""The client's own load: whether it was the bottleneck, and its figures say little about the server."""

import os
import time
from dataclasses import dataclass

import psutil

from diffuserve.bench.figures import Spread

_MUCH_CPU = 0.7
"""Of one core: the client runs on one, and its own queue grows near it."""
_LATE_SHARE = 0.05
_LATE_SECONDS = 0.01


@dataclass(frozen=True)
class OwnLoad:
    """The client's CPU, in cores, and the machine's load before and after."""

    cores: float
    load_before: float
    load_after: float


class OwnLoadMeter:
    """Measures the client from its making to `read`."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._start, self._cpu, self._load = time.perf_counter(), self._seconds(), os.getloadavg()[0]

    def read(self) -> OwnLoad:
        """Return what the client took so far."""
        seconds = max(time.perf_counter() - self._start, 1e-9)
        return OwnLoad((self._seconds() - self._cpu) / seconds, self._load, os.getloadavg()[0])

    def _seconds(self) -> float:
        spent = self._process.cpu_times()
        return spent.user + spent.system


def warning_of(own: OwnLoad, send_delay: Spread | None, latency: Spread | None) -> str | None:
    """Return what to know before the figures are believed; None if the client kept up."""
    if own.cores > _MUCH_CPU:
        return (
            f"the client took {own.cores:.2f} of a core: it may be the bottleneck; send less from one machine"
        )
    if send_delay is None or latency is None:
        return None
    late, median = send_delay.percentiles[99], latency.percentiles[50]
    if late > max(_LATE_SECONDS, _LATE_SHARE * median):
        return f"one request in a hundred was sent {late:.3f} s late or later: the client could not keep up"
    return None
