"""Event loops of the servers, and the signals that stop them."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from diffuserve.stop_signals import call_on_stop_signals

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in an event loop of uvloop; return its result."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and Ctrl-C set; a second Ctrl-C ends the process at once."""
    stop = asyncio.Event()
    call_on_stop_signals(stop.set)
    return stop
