"""The engine process's end of its connection to the agent."""

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from diffuserve.protocol.crash_record import CrashRecord
from diffuserve.protocol.messages import EngineRefused, FromEngine, ToEngine, decode, encode
from diffuserve.protocol.peer_messages import PeersTold
from diffuserve.stop_signals import ignore_stop_signals

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h


class AgentLink:
    """A connection whose end also ends this process. `send` is safe from any thread.

    `crash_record` lies beside the agent's socket, in the folder that the agent reads after a crash.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(path))
        self._sending = threading.Lock()
        self.crash_record = CrashRecord(path.parent)

    def send(self, *messages: FromEngine) -> None:
        """Send messages in one call: each call releases the interpreter's lock, and waits for it again."""
        content = b"".join(map(encode, messages))
        with self._sending:
            try:
                self._socket.sendall(content)
            except OSError:
                _exit_at_once()

    def refuse(self, reason: str) -> NoReturn:
        """Tell the agent why this engine cannot start, and exit.

        It exits without cleanup, since running threads of libraries would abort an orderly exit.
        """
        self.send(EngineRefused(reason=reason))
        _exit_at_once()

    def listen(
        self, on_message: Callable[[ToEngine], None], on_peers: Callable[[PeersTold], None] | None = None
    ) -> None:
        """Pass messages to `on_message`, and those about peers to `on_peers`, on a thread of its own."""
        arguments = (on_message, on_peers)
        threading.Thread(target=self._listen, args=arguments, name="agent-link", daemon=True).start()

    def send_every(self, seconds: float, message: Callable[[], FromEngine]) -> None:
        """Send what `message` returns every `seconds`, on a thread of its own."""

        def send_forever() -> None:
            pause = threading.Event()
            while not pause.wait(seconds):
                self.send(message())

        threading.Thread(target=send_forever, name="heartbeat", daemon=True).start()

    def _listen(
        self, on_message: Callable[[ToEngine], None], on_peers: Callable[[PeersTold], None] | None
    ) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    message = decode(line)
                    if isinstance(message, PeersTold):
                        if on_peers is not None:
                            on_peers(message)
                        continue
                    assert isinstance(message, ToEngine)
                    on_message(message)
        finally:
            _exit_at_once()


def end_with_agent_alone() -> None:
    """End with the agent, and ignore SIGTERM and Ctrl-C, also in processes that this one starts.

    The agent drains then, and needs its engines for that; it ends them by `StopEngine` or SIGKILL.
    """
    ignore_stop_signals()
    die_with_parent()


def die_with_parent() -> None:
    """Have the kernel kill this process when its agent ends.

    A process that was stopped, or that is deep in a library which holds the interpreter's lock, would not
    notice the end of the connection.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _exit_at_once() -> NoReturn:
    """Exit without waiting for other threads, whose results nothing can receive any more."""
    os._exit(1)
