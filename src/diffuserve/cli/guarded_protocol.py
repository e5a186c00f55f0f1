"""Uvicorn's protocols with deadlines and with limits of connections, which uvicorn itself has not."""

import asyncio
import logging
from asyncio import TimerHandle
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, cast

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from diffuserve.api.connection_limits import ConnectionLimits, OpenConnections
from diffuserve.api.problems import ProblemResource
from diffuserve.domain.errors import ServerUnavailable

log = logging.getLogger(__name__)

_MAX_HEAD_BYTES = 65_536
_MAX_REFUSED = 256  # connections that wait for their 503; more are closed without one
# To read on from a client that has its last response: closing at once could destroy the response.
_LINGER_SECONDS = 1.0
_RETRY_SECONDS = 5
_WARNING_SECONDS = 60.0


class GuardedConfig(uvicorn.Config):
    """Configuration of uvicorn with the limits of its connections, which all of them share."""

    def __init__(self, app: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(
            app,
            http=GuardedHttp,
            ws=GuardedWebSocket,
            # The delay of a timer, which may be a fraction.
            timeout_keep_alive=cast(int, limits.keep_alive_seconds),
            forwarded_allow_ips=list(limits.trusted_proxies),
            **options,
        )
        self.limits = limits
        self.connections = OpenConnections(limits)
        self.num_refused = 0
        self._warn_at = 0.0

    def warn_of_refusals(self, now: float) -> None:
        """Log, once a minute at most, that connections are refused."""
        if now >= self._warn_at:
            self._warn_at = now + _WARNING_SECONDS
            log.warning(
                "%d connections are open, and more are refused with 503: see DIFFUSERVE_MAX_CONNECTIONS, "
                "DIFFUSERVE_MAX_CONNECTIONS_PER_ADDRESS and DIFFUSERVE_TRUSTED_PROXIES",
                len(self.connections),
            )


class _Part(Enum):
    """Part of a request that is arriving."""

    HEAD = auto()
    BODY = auto()
    NONE = auto()
    NEVER = auto()  # the connection is a WebSocket now, or has had its last response


class GuardedHttp(HttpToolsProtocol):
    """An HTTP connection that is closed when a request does not arrive in time, or nobody reads the response.

    No timer runs while a request that has arrived is being handled, or between two requests: uvicorn has
    a timer for that. A connection over the limits gets 503 in response to its first request.
    """

    def __init__(self, config: uvicorn.Config, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        assert isinstance(config, GuardedConfig)
        self._guard = config
        self._limits = config.limits
        self._part = _Part.HEAD
        self._num_bytes, self._body_started_at = 0, 0.0
        self._deadline: TimerHandle | None = None
        self._write_deadline: TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._guard.connections.admit(transport, self.client[0] if self.client else ""):
            self._refuse()
        self._wait(self._limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._guard.connections.release(self.transport)
        self._guard.num_refused -= self._is_refused
        self._stop_waiting()
        self._stop_write_deadline()

    def data_received(self, data: bytes) -> None:
        if self._part is _Part.NEVER:
            return
        if self._is_refused:
            self._answer_refused()
            return
        last_request = self.cycle
        super().data_received(data)
        if self._part is _Part.NONE and self.cycle is last_request and self._is_idle():
            self._part, self._num_bytes = _Part.HEAD, 0  # blank lines, which may go before a request
        if self._part in (_Part.HEAD, _Part.BODY):
            self._note(len(data))
        elif self._deadline is not None:
            self._stop_waiting()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._part, self._num_bytes = _Part.HEAD, 0

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._part, self._num_bytes, self._body_started_at = _Part.BODY, 0, self.loop.time()
        self._stop_waiting()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._num_bytes += len(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._part = _Part.NONE

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over; it stays counted until the WebSocket is closed."""
        self._part = _Part.NEVER
        self._stop_waiting()
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        """Give the client some time to read what the buffer holds."""
        super().pause_writing()
        self._write_deadline = self.loop.call_later(self._limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_deadline()

    def _note(self, num_bytes: int) -> None:
        """Limit the time of a part that is incomplete, and the size of the headers."""
        is_head = self._part is _Part.HEAD
        self._num_bytes += num_bytes if is_head else 0
        if is_head and self._num_bytes > _MAX_HEAD_BYTES:
            self._end(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the headers exceed {_MAX_HEAD_BYTES} bytes"
            )
        elif self._deadline is None:
            self._wait(self._limits.header_seconds if is_head else self._limits.body_seconds)

    def _on_late(self) -> None:
        """Close a connection whose request is late; a body has more time for what has arrived of it."""
        self._deadline = None
        if self._part is _Part.HEAD:
            self._end(HTTPStatus.REQUEST_TIMEOUT, f"no headers after {self._limits.header_seconds:g} s")
            return
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            self._num_bytes, self._body_started_at = 0, self.loop.time()  # it waits for this server
        due = self._limits.body_deadline(self._body_started_at, self._num_bytes) - self.loop.time()
        if due > 0:
            self._wait(due)
        else:
            self._end(HTTPStatus.REQUEST_TIMEOUT, "the body arrives too slowly")

    def _end(self, status: HTTPStatus, detail: str) -> None:
        """Close the connection, with a response if the client has begun a request and has none yet."""
        has_begun = self._num_bytes > 0 or self._part is _Part.BODY
        is_answered = self._part is _Part.BODY and self.cycle.response_started
        if has_begun and not is_answered and (self._part is _Part.BODY or self._is_idle()):
            self._respond_last(_response(status, status.name.lower(), detail))
        else:
            self._stop_waiting()
            self.transport.close()

    def _respond_last(self, response: bytes) -> None:
        """Respond and close, but read on for a moment, so that the client gets the response."""
        self._part = _Part.NEVER
        self.transport.write(response)
        self._stop_waiting()
        self._deadline = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _refuse(self) -> None:
        self._is_refused = True
        self._guard.num_refused += 1
        self._guard.warn_of_refusals(self.loop.time())
        if self._guard.num_refused > _MAX_REFUSED:
            self.transport.abort()

    def _answer_refused(self) -> None:
        """Respond to the first request."""
        detail = f"too many connections; retry after {_RETRY_SECONDS} s"
        self._respond_last(
            _response(HTTPStatus.SERVICE_UNAVAILABLE, ServerUnavailable.code, detail, _RETRY_SECONDS)
        )

    def _is_idle(self) -> bool:
        """Return whether there is no request that awaits its response."""
        return self.cycle is None or self.cycle.response_complete

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(seconds, self._on_late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket, which is counted as the HTTP connection that it was."""

    def __init__(self, config: uvicorn.Config, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        assert isinstance(config, GuardedConfig)
        self._guard = config
        self._write_deadline: TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._guard.connections.release(self.transport)
        self._stop_write_deadline()

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


def _response(status: HTTPStatus, code: str, detail: str, retry_after: int | None = None) -> bytes:
    """Return the bytes of a problem after RFC 9457, after which the connection is closed."""
    problem = ProblemResource(
        type=f"urn:diffuserve:problem:{code}",
        title=status.phrase,
        status=status,
        detail=detail,
        instance="",
        code=code,
        retryable=status is not HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        request_id="",
    )
    body = orjson.dumps(problem)
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "content-type: application/problem+json",
        f"content-length: {len(body)}",
        *([] if retry_after is None else [f"retry-after: {retry_after}"]),
        "connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
