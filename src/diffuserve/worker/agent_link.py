"""The engine process's end of the pipe."""

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from diffuserve.worker.crash_record import CrashRecord
from diffuserve.worker.messages import FromEngine, Message, decode, encode

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


class AgentLink:
    """`send` is safe from any thread. When the agent is gone, so is this process."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(path))
        self.black_box = CrashRecord(path.parent)
        self._sending = threading.Lock()

    def send(self, message: FromEngine) -> None:
        with self._sending:
            try:
                self._socket.sendall(encode(message))
            except OSError:
                _die()

    def listen(self, on_message: Callable[[Message], None]) -> None:
        """Hand every message to `on_message`, on a thread of its own."""
        threading.Thread(target=self._listen, args=(on_message,), name="agent-link", daemon=True).start()

    def every(self, seconds: float, message: Callable[[], FromEngine]) -> None:
        """Send what `message` gives again and again, on a thread of its own."""

        def beat() -> None:
            pause = threading.Event()
            while not pause.wait(seconds):
                self.send(message())

        threading.Thread(target=beat, name="heartbeat", daemon=True).start()

    def _listen(self, on_message: Callable[[Message], None]) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    on_message(decode(line))
        finally:
            _die()


def die_with_parent() -> None:
    """Have the kernel kill this process with its agent: one that was stopped, or is deep in a library
    that keeps the interpreter's lock, would not see the end of the pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _die() -> None:
    """At once, whatever the other threads do: nobody is left who wants what they make."""
    os._exit(1)
