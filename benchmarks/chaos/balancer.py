"""A round-robin TCP load balancer in front of the control planes, and a bad network behind it."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.control.processes import free_port

_CHUNK_BYTES = 1 << 16
_DELAY = (0.0, 0.05)
_STALL = (0.5, 4.0)
_STALL_CHANCE = 0.01
_CUT_CHANCE = 0.01

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Chunks:
    """Counts of what a bad network carried."""

    sent: int = 0
    stalled: int = 0
    cut: int = 0


class BadNetwork:
    """A slow and lossy network.

    Every chunk is late. Some stall, as segments do that are lost and sent again, and some never come: their
    connection is reset, before a request has arrived or before its response has.
    """

    def __init__(self, dice: random.Random) -> None:
        self.chunks = Chunks()
        self._dice = dice

    async def carries_chunk(self) -> bool:
        """Wait as long as a chunk takes; return `False` if it is lost, and its connection with it."""
        self.chunks.sent += 1
        if self._dice.random() < _CUT_CHANCE:
            self.chunks.cut += 1
            return False
        is_stalled = self._dice.random() < _STALL_CHANCE
        self.chunks.stalled += is_stalled
        await asyncio.sleep(self._dice.uniform(*(_STALL if is_stalled else _DELAY)))
        return True


class Balancer:
    """Skips a replica that refuses a connection; if all refuse, it closes the client's.

    It makes no health checks: a suspended replica still gets its share of connections.
    """

    def __init__(self, ports: Sequence[int], network: BadNetwork | None = None) -> None:
        self.port = free_port()
        self._ports, self._turn = tuple(ports), 0
        self._network = network
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
                await self._join((reader, writer), replica)
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

    async def _join(self, client: Streams, replica: Streams) -> None:
        """Copy both ways until either side closes."""
        ways = [
            asyncio.create_task(self._copy(client[0], replica[1])),
            asyncio.create_task(self._copy(replica[0], client[1])),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            replica[1].close()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await source.read(_CHUNK_BYTES):
                if self._network is not None and not await self._network.carries_chunk():
                    sink.transport.abort()
                    return
                sink.write(chunk)
                await sink.drain()
