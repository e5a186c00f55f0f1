"""Requests that are no honest client's, as bytes on a connection to a real server."""

import asyncio
import gc
import logging
from contextlib import suppress

import pytest
import websockets
from uvicorn.server import ServerState
from websockets.frames import CloseCode

from diffuserve.api.server.connection_limits import ConnectionLimits
from diffuserve.api.server.guarded_protocol import GuardedConfig, GuardedHttp
from diffuserve.api.server.guarded_websocket import GuardedWebSocket
from support.guarded_server import SOON, Serve, Server, application, rest
from support.waiting import HANG_SECONDS, eventually

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
LAST_GET = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


def chunked(path: bytes, *chunks: bytes) -> bytes:
    """Return a request but for the trailers, and the blank line that ends them."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"POST %b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n%b0\r\n" % (path, body)


def statuses(responses: bytes) -> list[int]:
    return [int(response[:3]) for response in responses.split(b"HTTP/1.1 ")[1:]]


async def exchange(serve: Serve, *pieces: bytes, **limits: float) -> bytes:
    """Send the pieces, and return what comes until the server closes the connection."""
    async with serve(**limits) as server:
        reader, writer = await server.send(b"")
        ending = asyncio.create_task(rest(reader))
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        return await ending


async def test_trailers_are_no_headers_of_this_request_or_the_next(serve: Serve) -> None:
    """The parser gives them as it gives headers."""
    first = chunked(b"/headers", b"x") + b"authorization: Bearer key\r\n\r\n"
    last = b"POST /headers HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    responses = await exchange(serve, first + last)
    assert statuses(responses) == [200, 200]
    assert b"authorization" not in responses


@pytest.mark.parametrize("trailer", [b"a: b\r\n" * 1_000, b"x" * 6_000, b"a: " + b"b" * 6_000])
@pytest.mark.parametrize("chunks", [[], [b"x"]], ids=["after no body", "after a body"])
async def test_trailers_without_end_are_431(serve: Serve, chunks: list[bytes], trailer: bytes) -> None:
    responses = await exchange(serve, chunked(b"/", *chunks), *[trailer] * 100)
    assert statuses(responses) == [431]


async def test_a_chunk_size_without_end_is_431(serve: Serve) -> None:
    start = chunked(b"/", b"x").removesuffix(b"0\r\n")
    assert statuses(await exchange(serve, start + b"1;", *[b"x" * 6_000] * 100)) == [431]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        GET[:-2] + b"x: " + b"y" * 70_000 + b"\r\n\r\n",
    ]
    + [GET[:-2] + b"x: y\r\n" * num + b"\r\n" for num in (128, 30_000)],
    ids=["path", "header", "129 headers", "30,000 headers"],
)
async def test_a_head_that_arrives_at_once_is_431_over_its_limits(serve: Serve, head: bytes) -> None:
    assert statuses(await exchange(serve, head)) == [431]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"GET /\r\nhost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nhost: a\r\nhost: a\r\n\r\n", 400),
    ],
)
async def test_a_request_names_its_version_and_one_host_or_by_http_1_0_none(
    serve: Serve, head: bytes, status: int
) -> None:
    assert statuses(await exchange(serve, head)) == [status]


class _Wire(asyncio.Transport):
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 7)})
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


async def test_a_body_that_is_refused_unread_leaves_the_next_request_its_own_response() -> None:
    """The end of the body is much longer than a head may be, and arrives at once."""
    wire = _Wire()
    protocol = GuardedHttp(
        GuardedConfig(application(Server()), ConnectionLimits(), log_config=None), ServerState(), {}
    )
    protocol.connection_made(wire)
    protocol.data_received(b"POST /nowhere HTTP/1.1\r\nhost: a\r\ncontent-length: 200000\r\n\r\n")
    await eventually(lambda: statuses(wire.written) == [404])
    protocol.data_received(b"x" * 200_000)
    assert statuses(wire.written) == [404]
    protocol.data_received(GET)
    await eventually(lambda: statuses(wire.written) == [404, 200])
    protocol.connection_lost(None)


async def test_a_connection_is_idle_after_a_body_that_was_refused_unread(serve: Serve) -> None:
    async with serve(header_seconds=SOON) as server:
        reader, writer = await server.send(b"POST /nowhere HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n")
        async with asyncio.timeout(HANG_SECONDS):
            assert b" 404 " in await reader.readline()
        writer.write(b"x" * 9)
        assert statuses(await rest(reader)) == []


@pytest.mark.parametrize("pending", [b"GET /late HTTP/1.1\r\nhost: a\r\n\r\n", b"GET /late HTTP/1.0\r\n\r\n"])
@pytest.mark.parametrize("next_bytes", [b"\0\0", GET.replace(b"host: a", b""), HANDSHAKE + b"\r\n"])
async def test_a_fault_is_not_told_in_place_of_the_response_before_it(
    serve: Serve, pending: bytes, next_bytes: bytes
) -> None:
    async with serve() as server:
        reader, _ = await server.send(pending + next_bytes)
        other, _ = await server.send(LAST_GET)
        assert statuses(await rest(other)) == [200], "the server has read the first as well"
        server.may_respond.set()
        responses = await rest(reader)
        assert statuses(responses) == [200]
        assert b"late" in responses


@pytest.mark.parametrize("framing", [b"content-length: 26", b"transfer-encoding: chunked"])
@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
async def test_a_body_behind_an_upgrade_is_no_next_request(
    serve: Serve, protocol: bytes, framing: bytes
) -> None:
    head = HANDSHAKE.replace(b"websocket\r\n", protocol + b"\r\n", 1) + framing + b"\r\n\r\n"
    assert statuses(await exchange(serve, head, LAST_GET)) == [400]


async def test_a_request_follows_one_whose_upgrade_is_ignored(serve: Serve) -> None:
    ignored = GET[:-2] + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n"
    assert statuses(await exchange(serve, ignored + GET, ignored, LAST_GET)) == [200] * 4


@pytest.mark.parametrize(
    "head",
    [
        HANDSHAKE + b"x: " + b"y" * 20_000 + b"\r\n\r\n",
        HANDSHAKE.replace(b"/ws", b"/\xff") + b"\r\n",
        HANDSHAKE.replace(b"GET", b"POST") + b"\r\n",
        HANDSHAKE.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n",
    ],
)
async def test_a_handshake_that_is_none_is_400(serve: Serve, head: bytes) -> None:
    assert statuses(await exchange(serve, head)) == [400]


async def test_pipelined_requests_are_answered_in_order_up_to_a_number(serve: Serve) -> None:
    responses = await exchange(serve, GET * 500)
    assert set(statuses(responses)) == {200}
    assert 64 <= len(statuses(responses)) < 500


async def test_a_request_learns_that_its_client_has_gone_although_another_follows_it(serve: Serve) -> None:
    async with serve() as server:
        _, writer = await server.send(b"GET /endless HTTP/1.1\r\nhost: a\r\n\r\n" + GET)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        other, _ = await server.send(LAST_GET)
        assert statuses(await rest(other)) == [200], "the server has read the first as well"
        writer.transport.abort()
        async with asyncio.timeout(HANG_SECONDS):
            await server.has_stopped_sending.wait()


@pytest.mark.parametrize("messages", [["x" * 5_000], ["x"] * 20_000, [["x" * 1_000] * 20]])
async def test_a_websocket_whose_client_says_much_is_closed(
    serve: Serve, messages: list[str | list[str]]
) -> None:
    async with serve() as server, websockets.connect(server.url.replace("http", "ws") + "/deaf") as socket:
        with suppress(websockets.ConnectionClosed):
            for message in messages:
                await socket.send(message)
        async with asyncio.timeout(HANG_SECONDS):
            await socket.wait_closed()
    assert socket.close_code == CloseCode.MESSAGE_TOO_BIG


async def test_messages_of_websockets_are_not_compressed(serve: Serve) -> None:
    """A small message could become a large one."""
    async with serve() as server, websockets.connect(server.url.replace("http", "ws") + "/deaf") as socket:
        assert socket.protocol.extensions == []


async def test_nothing_is_kept_of_what_clients_of_websockets_say(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither of a text that is none nor of pieces, of which the last never comes."""
    masked, pieces = b"\x80\0\0\0\0", 100
    async with serve() as server:
        reader, writer = await server.send(HANDSHAKE.replace(b"/ws", b"/deaf") + b"\r\n")
        async with asyncio.timeout(HANG_SECONDS):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"\x81\x82\0\0\0\0\xff\xfe" + b"\x01" + masked + (b"\0" + masked) * pieces)
            writer.write(b"\x89" + masked)
            assert await reader.readexactly(2) == b"\x8a\0", "the ping gets its pong"
        found = [each for each in gc.get_objects() if type(each) is GuardedWebSocket]
        [socket] = [each for each in found if each.client == writer.get_extra_info("sockname")]
        assert (len(socket.frames), socket.queue.qsize()) == (0, 0)
        assert not [record for record in caplog.records if record.levelno > logging.INFO]
