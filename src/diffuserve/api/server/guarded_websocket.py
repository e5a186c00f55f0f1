"""Uvicorn's WebSocket with a limit of what its client may send, which uvicorn itself has not."""

from asyncio import TimerHandle
from typing import Any, Protocol, cast

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from diffuserve.api.server.connection_limits import ConnectionLimits, OpenConnections
from diffuserve.api.server.last_response import UNREADABLE, last_response

MAX_MESSAGE_BYTES = 4_096
"""Largest message of a client, in pieces or whole."""

_BURST_BYTES, _BYTES_PER_SECOND = 4 * MAX_MESSAGE_BYTES, 1_024


class _Guard(Protocol):
    """State that all connections of a server share."""

    limits: ConnectionLimits
    connections: OpenConnections


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket, which is counted as the HTTP connection that it was.

    Clients have nothing to say here but pings and pongs, so one that sends much is disconnected.
    """

    def __init__(self, config: uvicorn.Config, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self._guard = cast(_Guard, config)
        self._write_deadline: TimerHandle | None = None
        self._opened_at, self._num_bytes = self.loop.time(), 0

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._guard.connections.release(self.transport)
        self._stop_write_deadline()

    def data_received(self, data: bytes) -> None:
        """Read the handshake, which is the first data, or messages."""
        if self.handshake_initiated:
            self._num_bytes += len(data)
            if not self.handshake_complete or self._num_bytes > self._max_bytes():
                self._fail("clients send nothing here" if self.handshake_complete else "")
                return
        super().data_received(data)
        if not self.handshake_initiated:
            self.transport.write(last_response(*UNREADABLE))
            self.transport.close()

    def _drop(self, event: Frame) -> None:
        """Drop a piece of a message: it would be kept until the last comes, and empty ones without end."""

    handle_text = handle_bytes = handle_cont = _drop

    def _max_bytes(self) -> float:
        seconds = self.loop.time() - self._opened_at
        return _BURST_BYTES + _BYTES_PER_SECOND * seconds

    def _fail(self, reason: str) -> None:
        self.conn.fail(CloseCode.MESSAGE_TOO_BIG, reason)
        if frame := b"".join(self.conn.data_to_send()):
            self.transport.write(frame)
        self.close_sent = True
        self.transport.close()

    async def send(self, message: Any) -> None:
        """Send a message. A refusal by an HTTP response ends the handshake; uvicorn would log an error."""
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True

    def pause_writing(self) -> None:
        """Give the client some time to read what the buffer holds."""
        super().pause_writing()
        seconds = self._guard.limits.write_seconds
        self._write_deadline = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_deadline()

    def _stop_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None
