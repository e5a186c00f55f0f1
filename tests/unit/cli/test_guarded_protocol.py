"""Connections that are slow, idle, too many or never read, on a real server."""

import asyncio
import json
import resource
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import websockets
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import StreamingResponse

from diffuserve.api.connection_limits import ConnectionLimits
from diffuserve.cli.http_server import fitting, serving
from diffuserve.cli.listening import address_of, listen
from support.waiting import HANG_SECONDS, eventually

SOON = 0.1
LATE = 600.0


class KeepingReader(asyncio.StreamReader):
    """Reader that keeps what has arrived when the connection is reset."""

    def set_exception(self, exc: BaseException) -> None:
        self.feed_eof()


@dataclass
class Server:
    """A server of the test's own, and what its routes have seen."""

    url: str = ""
    port: int = 0
    bodies: list[bytes] = field(default_factory=list)
    may_respond: asyncio.Event = field(default_factory=asyncio.Event)
    has_stopped_sending: asyncio.Event = field(default_factory=asyncio.Event)
    connections: list[asyncio.StreamWriter] = field(default_factory=list)

    async def send(self, text: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection, and send the beginning of a request."""
        loop, reader = asyncio.get_running_loop(), KeepingReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.create_connection(lambda: protocol, "127.0.0.1", self.port)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self.connections.append(writer)  # to stay open
        writer.write(text)
        return reader, writer


def application(server: Server) -> FastAPI:
    app = FastAPI()

    @app.get("/")
    async def root() -> str:
        return "ok"

    @app.post("/")
    async def read(request: Request) -> int:
        server.bodies.append(await request.body())
        return len(server.bodies[-1])

    @app.get("/scheme")
    async def scheme(request: Request) -> str:
        return request.url.scheme

    @app.get("/late")
    async def late() -> str:
        await server.may_respond.wait()
        return "late"

    @app.post("/unread")
    async def unread(request: Request) -> int:
        await server.may_respond.wait()
        return len(await request.body())

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        return StreamingResponse(_endless(server))

    @app.websocket("/ws")
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    return app


async def _endless(server: Server) -> AsyncIterator[bytes]:
    try:
        while True:
            yield b"x" * 65_536
            await asyncio.sleep(0)
    finally:
        server.has_stopped_sending.set()


Serve = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture
def serve() -> Serve:
    """Run a server with some limits; the others are far away."""

    @asynccontextmanager
    async def serve(**limits: Any) -> AsyncGenerator[Server]:
        far: dict[str, Any] = {"header_seconds": LATE, "body_seconds": LATE, "keep_alive_seconds": LATE}
        server = Server()
        with closing(listen("127.0.0.1", 0)) as listener:
            server.url, server.port = address_of(listener), listener.getsockname()[1]
            async with serving(application(server), listener, ConnectionLimits(**(far | limits))):
                yield server
                for connection in server.connections:
                    connection.close()

    return serve


def client(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=HANG_SECONDS)


async def is_served(server: Server) -> bool:
    """Return whether a new connection is served, and not refused with 503."""
    async with client(server) as http:
        return (await http.get("/")).status_code == 200


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return what the server sends until it closes the connection."""
    async with asyncio.timeout(HANG_SECONDS):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def test_a_connection_that_sends_nothing_is_closed(serve: Serve) -> None:
    async with serve(header_seconds=SOON) as server:
        reader, _ = await server.send(b"")
        assert await rest(reader) == b""


@pytest.mark.parametrize(
    "text", [b"GET", b"GET / HTTP/1.1\r\nhost: a\r\n", b"POST / HTTP/1.1\r\nx: " + b"y" * 999]
)
async def test_headers_that_do_not_end_are_408(serve: Serve, text: bytes) -> None:
    async with serve(header_seconds=SOON) as server:
        reader, _ = await server.send(text)
        head, _, body = (await rest(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408")
        assert json.loads(body)["code"] == "request_timeout"


async def rest_while_dripping(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, drop: bytes
) -> bytes:
    """Send `drop` again and again, until the server has closed the connection; return what it sent."""
    ending = asyncio.create_task(rest(reader))
    while not ending.done():
        writer.write(drop)
        await asyncio.sleep(SOON / 20)
    return await ending


async def test_headers_that_drip_are_408(serve: Serve) -> None:
    """Each byte renews nothing."""
    async with serve(header_seconds=SOON) as server:
        reader, writer = await server.send(b"GET / HTTP/1.1\r\nx: ")
        assert (await rest_while_dripping(reader, writer, b"y")).startswith(b"HTTP/1.1 408")


async def test_blank_lines_keep_no_connection_open(serve: Serve) -> None:
    async with serve(header_seconds=SOON, keep_alive_seconds=SOON) as server:
        reader, writer = await server.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await rest_while_dripping(reader, writer, b"\r\n")).startswith(b"HTTP/1.1 200")


async def test_an_idle_connection_is_closed_after_its_response(serve: Serve) -> None:
    async with serve(keep_alive_seconds=SOON) as server:
        reader, _ = await server.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await rest(reader)).startswith(b"HTTP/1.1 200")


async def test_headers_without_end_are_431(serve: Serve) -> None:
    async with serve() as server:
        reader, writer = await server.send(b"GET / HTTP/1.1\r\nx: ")
        ending = asyncio.create_task(rest(reader))
        while not ending.done():
            writer.write(b"y" * 16_384)
            await asyncio.sleep(0)
        assert (await ending)[:12] in (b"HTTP/1.1 431", b""), "the client may be reset while it still sends"


@pytest.mark.parametrize("framing", [b"content-length: 100", b"transfer-encoding: chunked"])
async def test_a_body_that_does_not_end_is_408(serve: Serve, framing: bytes) -> None:
    async with serve(body_seconds=SOON) as server:
        reader, _ = await server.send(b"POST / HTTP/1.1\r\nhost: a\r\n" + framing + b"\r\n\r\n1\r\n")
        assert (await rest(reader)).startswith(b"HTTP/1.1 408")
        assert server.bodies == []


async def test_a_body_that_drips_is_408(serve: Serve) -> None:
    async with serve(body_seconds=SOON) as server:
        reader, writer = await server.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 999999\r\n\r\n")
        assert (await rest_while_dripping(reader, writer, b"y")).startswith(b"HTTP/1.1 408")


async def test_a_body_at_the_least_rate_may_take_long(serve: Serve) -> None:
    """A byte is worth ten minutes here; the other body, which sends none, shows that the deadline is over."""
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n"
    async with serve(body_seconds=SOON, body_bytes_per_second=1 / LATE) as server:
        reader, writer = await server.send(head)
        writer.write(b"x")
        for _ in range(3):
            other, _ = await server.send(head)
            assert (await rest(other)).startswith(b"HTTP/1.1 408")
        writer.write(b"12345678")
        async with asyncio.timeout(HANG_SECONDS):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert server.bodies == [b"x12345678"]


async def test_a_long_poll_has_no_deadline(serve: Serve) -> None:
    """Connections that were opened after it meanwhile pass their own deadlines."""
    limits = {"header_seconds": SOON, "body_seconds": SOON, "keep_alive_seconds": SOON}
    async with serve(**limits) as server, client(server) as http:
        waiting = asyncio.create_task(http.get("/late"))
        for _ in range(3):
            reader, _ = await server.send(b"GET")
            await rest(reader)
        assert not waiting.done()
        server.may_respond.set()
        assert (await waiting).json() == "late"


async def test_a_body_that_the_server_does_not_read_is_not_late(serve: Serve) -> None:
    async with serve(body_seconds=SOON) as server, client(server) as http:
        sending = asyncio.create_task(http.post("/unread", content=b"x" * 30_000_000))
        for _ in range(3):
            reader, _ = await server.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n")
            assert (await rest(reader)).startswith(b"HTTP/1.1 408")
        server.may_respond.set()
        assert (await sending).json() == 30_000_000


async def test_a_client_that_does_not_read_is_disconnected(serve: Serve) -> None:
    async with serve(write_seconds=SOON) as server:
        _, writer = await server.send(b"GET /endless HTTP/1.1\r\nhost: a\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(HANG_SECONDS):
            await server.has_stopped_sending.wait()


async def test_connections_over_the_limit_get_503_and_retry_after(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(max_connections=2) as server:
        _, first = await server.send(b"")
        await server.send(b"")
        for method, content in (("GET", b""), ("POST", b"x" * 100_000)):
            async with client(server) as http:
                refused = await http.request(method, "/", content=content)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert (refused.json()["code"], refused.json()["retryable"]) == ("server_unavailable", True)
        assert caplog.text.count("more are refused with 503") == 1, "an attack does not fill the log"
        first.close()
        await eventually(lambda: is_served(server))


@pytest.mark.parametrize(("trusted", "status"), [((), 503), (("127.0.0.0/8",), 200)])
async def test_a_proxys_connections_are_not_limited_by_address(
    serve: Serve, trusted: tuple[str, ...], status: int
) -> None:
    async with serve(max_connections_per_address=2, trusted_proxies=trusted) as server:
        for _ in range(2):
            await server.send(b"")
        async with client(server) as http:
            assert (await http.get("/")).status_code == status


async def test_a_websocket_counts_until_it_is_closed(serve: Serve) -> None:
    async with serve(max_connections=1, header_seconds=SOON) as server:
        async with websockets.connect(server.url.replace("http", "ws") + "/ws") as socket:
            assert not await is_served(server)
            await socket.send("hello")
            assert await socket.recv() == "hello"
        await eventually(lambda: is_served(server))


async def test_forwarded_headers_of_strangers_are_ignored(serve: Serve) -> None:
    for trusted, scheme in (((), "http"), (("127.0.0.0/8",), "https")):
        async with serve(trusted_proxies=trusted) as server, client(server) as http:
            response = await http.get("/scheme", headers={"x-forwarded-proto": "https"})
            assert response.json() == scheme


def test_the_limits_fit_the_files_that_the_process_may_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allowed = [256, 1_024]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(allowed))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: allowed.__setitem__(slice(None), limits))
    assert fitting(ConnectionLimits(max_connections=300)).max_connections == 300
    assert allowed == [812, 1_024]
    assert fitting(ConnectionLimits(max_connections=4_096)).max_connections == 512
    assert "ulimit -n" in caplog.text
