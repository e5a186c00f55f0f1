"""A process beside a server that takes its work through a pipe, and ends with it."""

import atexit
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from diffuserve.stop_signals import ignore_stop_signals

_SPAWN = multiprocessing.get_context("spawn")  # a fork would copy threads' locks, and open connections


class PipedProcess:
    """A process that runs `target(pipe, *arguments)`; `_pipe` is this end of it.

    It ignores SIGTERM and Ctrl-C, which may go to every process: the server finishes its requests first.
    """

    def __init__(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        arguments = (target, theirs, *arguments)
        self._process = _SPAWN.Process(target=_run, args=arguments, name=name, daemon=True)
        self._process.start()
        theirs.close()
        # Multiprocessing would end it by a SIGTERM and wait for that, if nobody has ended it by then.
        atexit.register(self.kill)

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        """Send SIGKILL; `end` remains to be called."""
        self._process.kill()

    def end(self) -> None:
        """End the process, whatever it does."""
        atexit.unregister(self.kill)
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _run(target: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    ignore_stop_signals()
    target(pipe, *arguments)
