"""A server whose responses a test scripts: also slow, invalid or endless ones."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from support.http_request import ReceivedRequest, read_request

_PIECE = b"x" * 65_536
Server = TypeVar("Server", bound="ScriptedServer")


@dataclass(frozen=True)
class Reply:
    """A response. `content` is a JSON value, or bytes to be sent as they are.

    The head is sent after `delay_seconds`, then the content; with `drip_seconds` byte by byte, with this
    pause before each. With `is_cut` the connection closes halfway through the content; with `is_endless`
    more bytes follow without end.
    """

    content: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    delay_seconds: float = 0.0
    drip_seconds: float = 0.0
    is_cut: bool = False
    is_endless: bool = False

    @property
    def body(self) -> bytes:
        """The content as it is sent."""
        return self.content if isinstance(self.content, bytes) else json.dumps(self.content).encode()


@dataclass
class ScriptedServer:
    """Sends the replies in `script`, then `always`. `None` closes the connection without a response."""

    port: int = 0
    always: Reply | None = None
    script: deque[Reply | None] = field(default_factory=deque)
    requests: list[ReceivedRequest] = field(default_factory=list)
    num_sent: int = 0
    """Number of bytes of content that the client accepted."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reply_to(self, request: ReceivedRequest) -> Reply | None:
        """Return the next reply of the script, whatever was requested."""
        return self.script.popleft() if self.script else self.always

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await read_request(reader):
                self.requests.append(request)
                reply = self.reply_to(request)
                if reply is None or not await self._send(reply, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client disconnected
        finally:
            writer.close()

    async def _send(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        """Send a reply; return whether the connection stays open."""
        await asyncio.sleep(reply.delay_seconds)
        writer.write(_head(reply))
        body = reply.body[: len(reply.body) // 2] if reply.is_cut else reply.body
        for piece in _pieces(body, reply.drip_seconds):
            await asyncio.sleep(reply.drip_seconds)
            await self._write(piece, writer)
        while reply.is_endless:
            await self._write(_PIECE, writer)
        return not reply.is_cut

    async def _write(self, piece: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(piece)
        await writer.drain()
        self.num_sent += len(piece)


@asynccontextmanager
async def scripted() -> AsyncGenerator[ScriptedServer]:
    """Run a server on a free port of this machine; the end of the block closes open connections."""
    async with listening(ScriptedServer()) as server:
        yield server


@asynccontextmanager
async def listening(scripted_server: Server) -> AsyncGenerator[Server]:
    """Run this server on a free port of this machine, as `scripted` does."""
    open_connections = set[asyncio.Task[Any]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_connections.add(task)
        task.add_done_callback(open_connections.discard)
        with suppress(asyncio.CancelledError):  # asyncio of Python 3.11 would log it
            await scripted_server.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    scripted_server.port = server.sockets[0].getsockname()[1]
    yield scripted_server
    server.close()
    for task in open_connections:
        task.cancel()
    await asyncio.gather(*open_connections, return_exceptions=True)


def too_slow(reply: Reply) -> list[Reply]:
    """Return `reply` in two ways that take ten minutes: late as a whole, and a byte at a time."""
    padded = reply.body + b" " * 6_000  # JSON ends with any number of blanks
    return [replace(reply, delay_seconds=600.0), replace(reply, content=padded, drip_seconds=0.1)]


def chat_reply(text: str | None, *, finish_reason: str = "stop", refusal: str | None = None) -> Reply:
    """Return a response of the chat completions API."""
    message = {"role": "assistant", "content": text, "refusal": refusal}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return Reply({"object": "chat.completion", "choices": [choice]})


def moderation_reply(scores: Mapping[str, Any]) -> Reply:
    """Return a response of OpenAI's moderation API."""
    result = {"flagged": False, "categories": {}, "category_scores": dict(scores)}
    return Reply({"id": "modr-1", "model": "m", "results": [result]})


def _head(reply: Reply) -> bytes:
    length = [] if reply.is_endless else [f"content-length: {len(reply.body)}"]
    lines = [
        f"HTTP/1.1 {reply.status} Scripted",
        *(f"{name}: {value}" for name, value in reply.headers.items()),
    ]
    return "\r\n".join([*lines, *length, "", ""]).encode()


def _pieces(body: bytes, drip_seconds: float) -> list[bytes]:
    if drip_seconds:
        return [body[i : i + 1] for i in range(len(body))]
    return [body] if body else []
