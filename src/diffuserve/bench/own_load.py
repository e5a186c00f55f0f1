"""The client's own load: whether it was the bottleneck, and its figures say little about the server."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from diffuserve.bench.figures import Spread
from diffuserve.bench.machine_load import MachineLoad, MachineLoadMeter

_MUCH_CPU = 0.7
"""Of one core: the client runs on one, and its own queue grows near it."""
_LATE_SHARE = 0.05
_LATE_SECONDS = 0.01


@dataclass(frozen=True)
class OwnLoad:
    """The client's CPU, in cores, and what else ran on its machine."""

    cores: float
    machine: MachineLoad


class OwnLoadMeter:
    """Measures the client from its making to `read`; `servers` are processes under load, if they run here."""

    def __init__(self, servers: Sequence[int] = ()) -> None:
        self._process, self._machine = psutil.Process(), MachineLoadMeter(servers)
        self._start, self._cpu = time.perf_counter(), self._seconds()

    def read(self) -> OwnLoad:
        """Return what the client took so far."""
        seconds = max(time.perf_counter() - self._start, 1e-9)
        return OwnLoad((self._seconds() - self._cpu) / seconds, self._machine.read())

    def _seconds(self) -> float:
        spent = self._process.cpu_times()
        return spent.user + spent.system


def warning_of(own: OwnLoad, send_delay: Spread | None, latency: Spread | None) -> str | None:
    """Return what to know before the figures are believed; None if the client kept up on a quiet machine."""
    if own.machine.warning is not None:
        return own.machine.warning
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
