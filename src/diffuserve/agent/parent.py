"""The server that started a worker, at the other end of a pipe."""

import asyncio
import os
from collections.abc import AsyncGenerator

import httpx

_MAX_BYTES = 1_024


class Parent(httpx.Auth):
    """Authenticates requests by the key that the server sends once it accepts them; until then they wait.

    The worker ends with its server: when the pipe is closed.
    """

    def __init__(self, descriptor: int) -> None:
        """Read from the pipe, in the running event loop."""
        self._descriptor = descriptor
        self._line = b""
        loop = asyncio.get_running_loop()
        self._key: asyncio.Future[str] = loop.create_future()
        loop.add_reader(descriptor, self._read)

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Send the request with the key."""
        request.headers["authorization"] = f"Bearer {await asyncio.shield(self._key)}"
        yield request

    def _read(self) -> None:
        part = os.read(self._descriptor, _MAX_BYTES)
        if not part:
            os._exit(1)  # the engine process sees the end of its connection, and exits too
        self._line += part
        if self._line.endswith(b"\n") and not self._key.done():
            self._key.set_result(self._line.decode().strip())
