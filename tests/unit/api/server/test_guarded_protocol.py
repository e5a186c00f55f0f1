"""Connections that are slow, idle, too many or never read, on a real server."""

import asyncio
import json
import resource
import socket

import httpx
import pytest
import websockets

from diffuserve.api.server.connection_limits import ConnectionLimits
from diffuserve.api.server.http_server import fitting
from support.guarded_server import LATE, SOON, Serve, Server, rest
from support.waiting import HANG_SECONDS, eventually


def client(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=HANG_SECONDS)


async def is_served(server: Server) -> bool:
    """Return whether a new connection is served, and not refused with 503."""
    async with client(server) as http:
        return (await http.get("/")).status_code == 200


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


@pytest.mark.parametrize("last", [b"", b"connection: close\r\n"], ids=["idle", "closed by the response"])
async def test_a_closed_connection_does_not_wait_for_ever_for_its_client_to_read(
    serve: Serve, last: bytes
) -> None:
    """Little is left to send, so that no writer waits for it."""
    async with serve(write_seconds=SOON, keep_alive_seconds=SOON, max_connections=1) as server:
        assert server.listener is not None
        server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            deaf.connect(("127.0.0.1", server.port))
            deaf.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 60)
            deaf.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n%b\r\n" % last)
            await eventually(lambda: is_served(server))


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
            assert await socket.recv() == "hello"
        await eventually(lambda: is_served(server))


async def test_forwarded_headers_of_strangers_are_ignored(serve: Serve) -> None:
    for trusted, scheme in (((), "http"), (("127.0.0.0/8",), "https")):
        async with serve(trusted_proxies=trusted) as server, client(server) as http:
            response = await http.get("/scheme", headers={"x-forwarded-proto": "https"})
            assert response.json() == scheme


async def test_a_proxy_that_is_not_trusted_is_told_of_once(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    for trusted, times in ((("127.0.0.0/8",), 0), ((), 1)):
        async with serve(trusted_proxies=trusted) as server, client(server) as http:
            for _ in range(2):
                await http.get("/", headers={"x-forwarded-for": "192.0.2.7"})
            assert caplog.text.count("127.0.0.1 sends X-Forwarded-For") == times


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
