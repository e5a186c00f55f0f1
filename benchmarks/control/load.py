"""A cheap load generator: a minimal HTTP/1.1 client over persistent connections.

A full HTTP client costs about as much as the server under test, on the same two cores.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = b"content-length:"


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """A connection that sends a request at a time. Responses must have a Content-Length."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def post(self, path: str, content: Mapping[str, Any], headers: Sequence[str] = ()) -> Answer:
        return await self.send(post_request(path, json.dumps(content).encode(), headers))

    async def send(self, request: bytes) -> Answer:
        self._writer.write(request)
        head = await self._reader.readuntil(_END_OF_HEAD)
        length = _content_length(head)
        return Answer(int(head[9:12]), await self._reader.readexactly(length) if length else b"")


def post_request(path: str, body: bytes, headers: Sequence[str] = ()) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + _END_OF_HEAD + body


async def submit_jobs(port: int, bodies: Sequence[bytes], num_connections: int) -> None:
    """Send each body once to `POST /v1/jobs`, over `num_connections` connections."""
    requests = iter([post_request("/v1/jobs", body) for body in bodies])

    async def submit_rest(connection: Connection) -> None:
        for request in requests:
            answer = await connection.send(request)
            if answer.status != 202:
                raise RuntimeError(f"a submission was answered {answer.status}: {answer.body[:500]!r}")

    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(Connection(port)) for _ in range(num_connections)]
        async with asyncio.TaskGroup() as group:
            for connection in connections:
                group.create_task(submit_rest(connection))


def _content_length(head: bytes) -> int:
    start = head.lower().find(_LENGTH)
    if start < 0:
        return 0
    start += len(_LENGTH)
    return int(head[start : head.index(b"\r\n", start)])
