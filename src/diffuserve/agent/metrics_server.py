"""Serves metrics to Prometheus: a few connections at a time, each for one request and not for long."""

import asyncio
import contextlib
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from diffuserve.domain.errors import InvalidParams

PATH = "/metrics"
MAX_CONNECTIONS = 16
_SECONDS = 10.0
"""The time of a connection as a whole, from its first byte to its last."""
_HEAD_BYTES = 8_192
_END = b"\r\n\r\n"


class MetricsServer:
    """Serves what a registry collects, in the running event loop."""

    def __init__(self, registry: CollectorRegistry, seconds: float = _SECONDS) -> None:
        self._registry, self._seconds = registry, seconds
        self._server: asyncio.Server | None = None
        self.num_open = 0

    async def start(self, host: str, port: int) -> None:
        """Listen. Raise `InvalidParams` if the address cannot be used."""
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=_HEAD_BYTES, backlog=MAX_CONNECTIONS
            )
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            remedy = f"cannot listen on {host}: {reason.lower()}; give another --metrics-port, or none"
            raise InvalidParams("metrics_port", port, remedy) from error

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_open += 1
        try:
            if self.num_open <= MAX_CONNECTIONS:
                with contextlib.suppress(OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
                    async with asyncio.timeout(self._seconds):
                        await self._exchange(reader, writer)
        finally:
            self.num_open -= 1
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, *headers = (await reader.readuntil(_END)).decode("latin-1").split("\r\n")
        named = (line.partition(":") for line in headers)
        accept = next((value.strip() for name, _, value in named if name.lower() == "accept"), "")
        writer.write(await self._response(request.split(" "), accept))
        writer.close()
        await writer.wait_closed()

    async def _response(self, request: list[str], accept: str) -> bytes:
        if len(request) != 3 or request[0] != "GET":
            return _http(HTTPStatus.BAD_REQUEST, "text/plain", b"GET /metrics\n")
        if request[1].partition("?")[0] != PATH:
            return _http(HTTPStatus.NOT_FOUND, "text/plain", b"GET /metrics\n")
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # it parses versions and fails on malformed ones
            return _http(HTTPStatus.BAD_REQUEST, "text/plain", b"Accept names no version\n")
        content = await asyncio.to_thread(encode, self._registry)  # it asks the GPUs' driver
        return _http(HTTPStatus.OK, content_type, content)


def _http(status: HTTPStatus, content_type: str, content: bytes) -> bytes:
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"content-type: {content_type}",
        f"content-length: {len(content)}",
        "connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + content
