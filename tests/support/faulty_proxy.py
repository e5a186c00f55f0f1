"""A proxy before an HTTP server of this machine, which fails as it is told to, for tests."""

import http.client
import threading
import time
from collections import deque
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "server", "date"})
_LOOK_SECONDS = 0.02  # how soon it is gone once its block ends


@dataclass(frozen=True)
class Answer:
    """An answer of the proxy's own; the server is not asked."""

    status: int


@dataclass(frozen=True)
class Delay:
    """The server is asked after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class CutRequest:
    """The connection ends halfway through the request's body; the server is not asked."""


@dataclass(frozen=True)
class CutAnswer:
    """The server does what it was asked; the connection ends halfway through its answer."""


Fault = Answer | Delay | CutRequest | CutAnswer


class FaultyProxy:
    """Listens within the block. `always` is what every request meets until it is `None` again."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.always: Fault | None = None
        self.asked: list[tuple[str, str]] = []
        """Method and path of every request, also of those that failed."""
        self._next: deque[Fault] = deque()

    def fail_next(self, *faults: Fault) -> None:
        """One request each, in order."""
        self._next.extend(faults)

    def take(self, method: str, path: str) -> Fault | None:
        """What this request meets."""
        self.asked.append((method, path))
        return self._next.popleft() if self._next else self.always

    def __enter__(self) -> "FaultyProxy":
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._listener = _Listener(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._listener.server_address[1]}"
        serve = self._listener.serve_forever
        threading.Thread(target=serve, args=(_LOOK_SECONDS,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown()
        self._listener.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent: a client that gives up is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultyProxy

    def do_GET(self) -> None:
        fault = self.proxy.take(self.command, urlsplit(self.path).path)
        length = int(self.headers.get("content-length", 0))
        if isinstance(fault, CutRequest):
            self.rfile.read(length // 2)
            return self._cut()
        body = self.rfile.read(length)
        if isinstance(fault, Answer):
            return self._answer(fault.status, {}, b"<Error><Code>Fault</Code></Error>")
        if isinstance(fault, Delay):
            time.sleep(fault.seconds)
        self._forward(body, is_cut=isinstance(fault, CutAnswer))

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def _forward(self, body: bytes, is_cut: bool) -> None:
        server = http.client.HTTPConnection(urlsplit(self.proxy.server).netloc, timeout=30)
        server.request(self.command, self.path, body, dict(self.headers))
        answer = server.getresponse()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
        self._answer(answer.status, headers, answer.read(), is_cut)
        server.close()

    def _answer(self, status: int, headers: dict[str, str], content: bytes, is_cut: bool = False) -> None:
        if is_cut and not content:
            return self._cut()
        known = {name.lower(): value for name, value in headers.items()}  # to HEAD, with the file's length
        self.send_response(status)
        for name, value in ({"content-length": str(len(content))} | known).items():
            self.send_header(name, value)
        self.end_headers()
        if is_cut:
            self.wfile.write(content[: len(content) // 2])
            return self._cut()
        self.wfile.write(content)

    def _cut(self) -> None:
        self.wfile.flush()
        self.close_connection = True
