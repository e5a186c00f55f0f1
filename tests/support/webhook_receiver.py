"""A receiver of webhooks: it records them, and responds as a script says."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ssl import SSLContext

from support.http_request import ReceivedRequest, read_request
from support.waiting import HANG_SECONDS


@dataclass
class WebhookReceiver:
    """Responds with the statuses in `script`, then with 204. `None` hangs, 0 closes the connection."""

    port: int = 0
    script: deque[int | None] = field(default_factory=deque)
    received: list[ReceivedRequest] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    redirect_to: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def wait_for(self, count: int, seconds: float = HANG_SECONDS) -> list[ReceivedRequest]:
        """Wait until `count` webhooks have arrived, and return all. Raise `TimeoutError` after `seconds`."""
        async with asyncio.timeout(seconds):
            while len(self.received) < count:
                self.arrived.clear()
                await self.arrived.wait()
        return self.received

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await read_request(reader):
                self.received.append(request)
                self.arrived.set()
                status = self.script.popleft() if self.script else 204
                if status is None:
                    await asyncio.sleep(3_600)
                if not status:
                    return
                writer.write(self._head(status))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the sender disconnected
        finally:
            writer.close()

    def _head(self, status: int) -> bytes:
        location = f"location: {self.redirect_to}\r\n" if 300 <= status < 400 else ""
        return f"HTTP/1.1 {status} Scripted\r\n{location}content-length: 0\r\n\r\n".encode()


@asynccontextmanager
async def receiving(ssl: SSLContext | None = None) -> AsyncGenerator[WebhookReceiver]:
    """Run a receiver on a free port of this machine."""
    receiver = WebhookReceiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=ssl)
    receiver.port = server.sockets[0].getsockname()[1]
    yield receiver
    server.close()
