"""A guarded server with routes of its own, and connections that send it any bytes."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import StreamingResponse

from diffuserve.api.server.connection_limits import ConnectionLimits
from diffuserve.api.server.http_server import serving
from diffuserve.cli.servers.listening import address_of, listen
from support.waiting import HANG_SECONDS

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
    listener: socket.socket | None = None
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

    @app.post("/headers")
    async def headers(request: Request) -> list[str]:
        await request.body()
        return list(request.headers)

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

    _add_websockets(app)
    return app


def _add_websockets(app: FastAPI) -> None:
    @app.websocket("/ws")
    async def greet(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hello")
        await websocket.receive()  # that the client has gone

    @app.websocket("/deaf")
    async def read_on(websocket: WebSocket) -> None:
        await websocket.accept()
        while (await websocket.receive())["type"] != "websocket.disconnect":
            pass


async def _endless(server: Server) -> AsyncIterator[bytes]:
    try:
        while True:
            yield b"x" * 65_536
            await asyncio.sleep(0)
    finally:
        server.has_stopped_sending.set()


Serve = Callable[..., AbstractAsyncContextManager[Server]]


@asynccontextmanager
async def serve(**limits: Any) -> AsyncGenerator[Server]:
    """Run a server with some limits; the others are far away."""
    far: dict[str, Any] = {"header_seconds": LATE, "body_seconds": LATE, "keep_alive_seconds": LATE}
    with closing(listen("127.0.0.1", 0)) as listener:
        server = Server(address_of(listener), listener.getsockname()[1], listener)
        async with serving(application(server), listener, ConnectionLimits(**(far | limits))):
            yield server
            for connection in server.connections:
                connection.close()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return what the server sends until it closes the connection."""
    async with asyncio.timeout(HANG_SECONDS):
        try:
            return await reader.read()
        except ConnectionError:
            return b""
