"""Many clients that only wait, on connections that cost this process next to nothing, and a prober."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from benchmarks.control.claims import percentile
from benchmarks.control.load import Connection

_AT_ONCE = 50
_PROBE_PAUSE_SECONDS = 0.02
_PROBE_TIMEOUT_SECONDS = 10.0


class Follower(asyncio.Protocol):
    """A connection that sends one request, and counts the events of its response."""

    def __init__(self, request: bytes) -> None:
        self.num_events = 0
        self.head = b""
        self.is_open: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._request = request
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, content: bytes) -> None:
        if not self.is_open.done():
            self.head = content[:64]
            self.is_open.set_result(True)
        self.num_events += content.count(b"event: ")

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_open.done():
            self.is_open.set_result(False)

    def close(self) -> None:
        self._transport.abort()


def get_request(path: str, key: str) -> bytes:
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\r\n"
    return head.encode()


async def follow(
    port: int, requests: Sequence[bytes], seconds: float, *, awaits_head: bool
) -> list[Follower]:
    """Send each request on its own connection, some at a time; return those open after `seconds`.

    With `awaits_head` a connection counts once its response has begun.
    """
    loop, waiting, followers = asyncio.get_running_loop(), iter(requests), list[Follower]()

    async def open_rest() -> None:
        for request in waiting:
            _, follower = await loop.create_connection(partial(Follower, request), "127.0.0.1", port)
            followers.append(follower)
            if awaits_head:
                await follower.is_open

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(open_rest())
    return [
        follower for follower in followers if not awaits_head or follower.head.startswith(b"HTTP/1.1 200")
    ]


@dataclass
class Prober:
    """A client that gets one job again and again; a request without an answer counts as its timeout."""

    port: int
    request: bytes
    milliseconds: list[float] = field(default_factory=list)

    async def run(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            with suppress(TimeoutError):
                async with Connection(self.port) as connection:
                    while time.perf_counter() < end:
                        await self._probe(connection)

    async def _probe(self, connection: Connection) -> None:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_SECONDS):
                answer = await connection.send(self.request)
            assert answer.status == 200, answer.body
        finally:
            self.milliseconds.append(1_000 * (time.perf_counter() - started))
        await asyncio.sleep(_PROBE_PAUSE_SECONDS)

    @property
    def p99_ms(self) -> float:
        return percentile(self.milliseconds, 99)

    @property
    def max_ms(self) -> float:
        return max(self.milliseconds)
