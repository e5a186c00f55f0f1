"""Event loops of the servers, and the signals that stop them."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from diffuserve.cli.exit_codes import INTERRUPTED

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in an event loop of uvloop; return its result."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGINT or SIGTERM sets.

    A second Ctrl-C ends the process at once, which loses no job either: leases expire. SIGTERM may come
    twice, as from `timeout`, which sends it to the process and to its group.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def interrupt() -> None:
        stop.set()
        loop.add_signal_handler(signal.SIGINT, os._exit, INTERRUPTED)

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    return stop
