"""The engine process's end of the pipe."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from diffuserve.worker.messages import FromEngine, Message, decode, encode


class AgentLink:
    """`send` is safe from any thread. When the agent is gone, so is this process."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(path))
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


def _die() -> None:
    """At once, whatever the other threads do: nobody is left who wants what they make."""
    os._exit(1)
