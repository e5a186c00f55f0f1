"""A round-robin TCP load balancer in front of the control planes."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from control_processes import free_port

_CHUNK_BYTES = 1 << 16

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Balancer:
    """Skips a replica that refuses a connection; if all refuse, it closes the client's.

    It makes no health checks: a suspended replica still gets its share of connections.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self.port = free_port()
        self._ports, self._turn = tuple(ports), 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if (replica := await self._connect()) is not None:
                await _join((reader, writer), replica)
        finally:
            writer.close()

    async def _connect(self) -> Streams | None:
        for port in self._in_turn():
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return None

    def _in_turn(self) -> Sequence[int]:
        self._turn = (self._turn + 1) % len(self._ports)
        return self._ports[self._turn :] + self._ports[: self._turn]


async def _join(client: Streams, replica: Streams) -> None:
    """Copy both ways until either side closes."""
    ways = [
        asyncio.create_task(_copy(client[0], replica[1])),
        asyncio.create_task(_copy(replica[0], client[1])),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        replica[1].close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await source.read(_CHUNK_BYTES):
            sink.write(chunk)
            await sink.drain()
