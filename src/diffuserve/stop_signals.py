"""SIGTERM and Ctrl-C, which may reach every process of a worker: one drains, the others ignore them.

Slurm's `scancel`, `timeout`, supervisors and some shells send them to all.
"""

import os
import signal
from collections.abc import Callable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
INTERRUPTED = 130
"""The exit code that shells report for Ctrl-C."""


def call_on_stop_signals(stop: Callable[[], None]) -> None:
    """Call `stop` in the running loop at each SIGTERM and at the first Ctrl-C; a second Ctrl-C exits at once.

    That loses no job either: leases expire. SIGTERM may come twice, as from `timeout`, which sends it to the
    process and to its group.
    """
    import asyncio  # here, as every command reads the exit code above

    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        loop.add_signal_handler(signal.SIGINT, os._exit, INTERRUPTED)
        stop()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, interrupt)


def ignore_stop_signals() -> None:
    """Leave them to the process that ends this one; processes that this one starts inherit it."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
