"""An HTTP proxy that injects faults between a client and a local server."""

import http.client
import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, assert_never
from urllib.parse import urlsplit

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "server", "date"})
_POLL_SECONDS = 0.02  # between checks whether the block has ended


@dataclass(frozen=True)
class Respond:
    """The proxy responds with `status` itself; the server gets no request."""

    status: int


@dataclass(frozen=True)
class Delay:
    """The proxy forwards the request after `seconds`."""

    seconds: float


@dataclass(frozen=True)
class CutRequest:
    """The connection closes halfway through the request's body; the server gets no request."""


@dataclass(frozen=True)
class CutResponse:
    """The server handles the request; the connection closes halfway through its response."""


Fault = Respond | Delay | CutRequest | CutResponse


class FaultyProxy:
    """Listens within a `with` block. `always` is the fault of every request, if it is not `None`."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.always: Fault | None = None
        self.requests: list[tuple[str, str]] = []
        """Method and path of every request, failed ones included."""
        self._next: deque[Fault] = deque()

    def fail_next(self, *faults: Fault) -> None:
        """Inject a fault into each of the next requests, in order."""
        self._next.extend(faults)

    def next_fault(self, method: str, path: str) -> Fault | None:
        """Record a request and return its fault, if any."""
        self.requests.append((method, path))
        return self._next.popleft() if self._next else self.always

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._listener = _Listener(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._listener.server_address[1]}"
        serve = self._listener.serve_forever
        threading.Thread(target=serve, args=(_POLL_SECONDS,), daemon=True).start()
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
        """Log nothing: tests make clients disconnect on purpose."""


class _Handler(BaseHTTPRequestHandler):
    """Handles the requests of a connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultyProxy

    def do_GET(self) -> None:
        fault = self.proxy.next_fault(self.command, urlsplit(self.path).path)
        length = int(self.headers.get("content-length", 0))
        match fault:
            case CutRequest():
                self.rfile.read(length // 2)
                self._cut()
            case Respond(status):
                self.rfile.read(length)
                self._respond(status, {}, b"<Error><Code>Fault</Code></Error>")
            case Delay(seconds):
                body = self.rfile.read(length)
                time.sleep(seconds)
                self._forward(body)
            case CutResponse():
                self._forward(self.rfile.read(length), is_cut=True)
            case None:
                self._forward(self.rfile.read(length))
            case _:
                assert_never(fault)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _forward(self, body: bytes, is_cut: bool = False) -> None:
        with closing(http.client.HTTPConnection(urlsplit(self.proxy.server).netloc, timeout=30)) as server:
            server.request(self.command, self.path, body, dict(self.headers))
            response = server.getresponse()
            kept = [(name, value) for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP]
            self._respond(response.status, dict(kept), response.read(), is_cut)

    def _respond(self, status: int, headers: dict[str, str], content: bytes, is_cut: bool = False) -> None:
        if is_cut and not content:
            return self._cut()
        given = {name.lower(): value for name, value in headers.items()}  # of HEAD, with the file's length
        self.send_response(status)
        for name, value in ({"content-length": str(len(content))} | given).items():
            self.send_header(name, value)
        self.end_headers()
        if is_cut:
            self.wfile.write(content[: len(content) // 2])
            return self._cut()
        self.wfile.write(content)

    def _cut(self) -> None:
        self.wfile.flush()
        self.close_connection = True
