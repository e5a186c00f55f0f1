"""The key-value store in which ranks meet and leave their heartbeats; it imports no torch.

The ranks of its machine have a connection from their start on; those of others connect to `listener` and
prove that they know the group's secret before anything that they say is read.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from diffuserve.parallel.seal import NotProven, SealedConnection

MAX_WAIT_SECONDS = 0.1
"""The longest that a request waits here; whoever waits longer asks again, so that others get their turn."""
_MAX_STRANGERS = 64
_PROOF_SECONDS = 10.0
_RETRY_SECONDS = 0.1

Values: TypeAlias = dict[str, str]


class KeyValues:
    """The values by key. Safe from any thread."""

    def __init__(self) -> None:
        self._values: Values = {}
        self._changed = threading.Condition()
        self._calls: Mapping[str, Callable[..., Any]] = {
            "set": self._set,
            "get": self._values.get,
            "add": self._add,
            "compare_set": self._compare_set,
            "delete": lambda key: self._values.pop(key, None) is not None,
            "has": self._has,
            "count": lambda: len(self._values),
        }

    def call(self, name: str, *arguments: Any) -> Any:
        """Do what a request asks for; `wait` returns whether all keys are there."""
        with self._changed:
            if name == "wait":
                return self._changed.wait_for(lambda: self._has(*arguments), MAX_WAIT_SECONDS)
            answer = self._calls[name](*arguments)
            self._changed.notify_all()
            return answer

    def _set(self, key: str, value: str) -> None:
        self._values[key] = value

    def _add(self, key: str, amount: int) -> int:
        total = int(self._values.get(key, "0")) + amount
        self._values[key] = str(total)
        return total

    def _compare_set(self, key: str, expected: str, value: str) -> str:
        """Set a key that has the expected value, or has none where `""` is expected; return what it has."""
        if self._values.get(key, "") == expected:
            self._values[key] = value
        return self._values.get(key, expected)

    def _has(self, *keys: str) -> bool:
        return all(key in self._values for key in keys)


class StoreServer:
    """Serves a store to connections that exist, and to those that a listening socket accepts."""

    def __init__(
        self, secret: bytes, connections: Sequence[socket.socket] = (), listener: socket.socket | None = None
    ) -> None:
        self._secret, self._connections, self._listener = secret, connections, listener
        self._values = KeyValues()
        self._strangers = threading.Semaphore(_MAX_STRANGERS)

    def start(self) -> None:
        """Serve on threads, until this process ends."""
        for connection in self._connections:
            _in_background(self._serve, connection)
        if self._listener is not None:
            _in_background(self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        while listener.fileno() >= 0:
            try:
                stream, _ = listener.accept()
            except OSError:  # the client is gone, or too many files are open
                time.sleep(_RETRY_SECONDS)
                continue
            if self._strangers.acquire(blocking=False):
                _in_background(self._admit, stream)
            else:
                stream.close()

    def _admit(self, stream: socket.socket) -> None:
        """Serve a connection that proves itself in time; until then it is one of a few strangers."""
        try:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _proven(stream, self._secret, _PROOF_SECONDS)
        finally:
            self._strangers.release()
        if connection is not None:
            self._answer(connection)

    def _serve(self, stream: socket.socket) -> None:
        """Serve a rank of this machine, whenever it gets that far."""
        if (connection := _proven(stream, self._secret, None)) is not None:
            self._answer(connection)

    def _answer(self, connection: SealedConnection) -> None:
        with contextlib.suppress(OSError, NotProven), contextlib.closing(connection):
            while True:
                name, *arguments = json.loads(connection.receive())
                connection.send(json.dumps(self._values.call(name, *arguments)).encode())


def _proven(stream: socket.socket, secret: bytes, within: float | None) -> SealedConnection | None:
    """Return a connection once it has proven itself; `None`, and closed, if it does not."""
    try:
        return SealedConnection(stream, secret, is_server=True, within=within)
    except (OSError, NotProven):
        stream.close()
        return None


def _in_background(run: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=run, args=arguments, daemon=True).start()
