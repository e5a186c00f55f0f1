"""Uvicorn's protocols with deadlines and with limits of connections, which uvicorn itself has not."""

import asyncio
import logging
from asyncio import TimerHandle
from collections.abc import Iterable
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, NoReturn, cast

import uvicorn
from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from diffuserve.api.config import ApiConfig
from diffuserve.api.server.connection_limits import ConnectionLimits, OpenConnections
from diffuserve.api.server.guarded_websocket import MAX_MESSAGE_BYTES, GuardedWebSocket
from diffuserve.api.server.last_response import UNREADABLE, Fault, last_response
from diffuserve.api.server.request_heads import MAX_HEADERS, RequestHead
from diffuserve.domain.errors import ServerUnavailable

log = logging.getLogger(__name__)

_MAX_HEAD_BYTES = 65_536
_MAX_TRAILER_BYTES = 8_192
_MAX_UNREAD_BYTES = ApiConfig.max_file_bytes  # of a body whose response was sent before its end
_MAX_PIPELINED = 64  # requests that wait for the responses to those before them
_TOO_LARGE: Fault = (
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    f"at most {_MAX_HEAD_BYTES:,} bytes and {MAX_HEADERS} headers are read, and {_MAX_TRAILER_BYTES:,} "
    "bytes between and after the chunks of a body",
)
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
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_per_message_deflate=False,
            **options,
        )
        self.limits = limits
        self.connections = OpenConnections(limits)
        self.num_refused = 0
        self._closing: dict[asyncio.Transport, float] = {}
        self._warn_at = 0.0
        self._may_warn_of_proxy = True

    def abort_unread(self, now: float) -> None:
        """Abort connections that were closed some time ago: their clients do not read what is left.

        Little that is left has no writer wait, and so none notices.
        """
        transports = cast(Iterable[asyncio.Transport], self.connections)
        self._closing = {each: self._closing.get(each, now) for each in transports if each.is_closing()}
        for each, closed_at in self._closing.items():
            if now - closed_at > self.limits.write_seconds:
                each.abort()

    def warn_of_refusals(self, now: float) -> None:
        """Log, once a minute at most, that connections are refused."""
        if now >= self._warn_at:
            self._warn_at = now + _WARNING_SECONDS
            log.warning(
                "%d connections are open, and more are refused with 503: see DIFFUSERVE_MAX_CONNECTIONS, "
                "DIFFUSERVE_MAX_CONNECTIONS_PER_ADDRESS and DIFFUSERVE_TRUSTED_PROXIES",
                len(self.connections),
            )

    def warn_of_proxy(self, address: str) -> None:
        """Log, once, that a request was forwarded by an address that is no trusted proxy."""
        if self._may_warn_of_proxy and not self.connections.is_proxy(address):
            self._may_warn_of_proxy = False
            log.warning(
                "%s sends X-Forwarded-For, which is not believed: if it is your proxy, all of its clients "
                "count as one; name it in DIFFUSERVE_TRUSTED_PROXIES",
                address,
            )


class _Part(Enum):
    """Part of a request that is arriving."""

    NONE = auto()  # no request has begun, or the last one has arrived
    HEAD = auto()
    BODY = auto()
    NEVER = auto()  # the connection is a WebSocket now, or has had its last request


class GuardedHttp(HttpToolsProtocol):
    """An HTTP connection that is closed when a request does not arrive in time, or nobody reads the response.

    No timer runs while a request that has arrived is being handled, or between two requests: uvicorn has
    a timer for that. A connection over the limits gets 503 in response to its first request.

    What cannot be parsed, or is too large, is the connection's last request. It gets an error if it is the
    next to be answered, and else nothing: its error would be taken for the response to another request.
    """

    def __init__(self, config: uvicorn.Config, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        assert isinstance(config, GuardedConfig)
        self._guard = config
        self._limits = config.limits
        self._part = _Part.NONE
        # Of the part that arrives: bytes of its lines, and of a body those before and after its response.
        self._num_line_bytes, self._num_body_bytes, self._num_unread_bytes = 0, 0, 0
        self._num_pending_bytes = 0  # since the parser last reported anything, so that it may hold them
        self._body_started_at = 0.0
        self._fault = UNREADABLE
        self._running: RequestResponseCycle | None = None  # `cycle` is that of the last request
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
        self._disconnect(self._running)
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
        self._unset_keepalive_if_required()
        self._num_pending_bytes += len(data)
        self._parse(memoryview(data))
        self._watch()

    def _parse(self, data: memoryview) -> None:
        while self._part is not _Part.NEVER:
            try:
                self.parser.feed_data(data)
                return
            except HttpParserUpgrade as upgrade:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                data = data[upgrade.args[0] :]  # the upgrade is ignored, and the next request follows
            except HttpParserError:
                self._end(self._fault)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._reject(UNREADABLE)
        super().on_message_begin()
        self._begin(_Part.HEAD)

    def on_url(self, url: bytes) -> None:
        self._count_line(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; those after a chunked body change nothing."""
        self._count_line(len(name) + len(value) + len(": \r\n"))
        if self._part is _Part.HEAD:
            super().on_header(name, value)
            if len(self.headers) > MAX_HEADERS:
                self._reject(_TOO_LARGE)

    def on_headers_complete(self) -> None:
        is_upgrade = self.parser.should_upgrade()
        is_websocket = is_upgrade and self._should_upgrade()
        method, version = self.parser.get_method().decode("ascii"), self.parser.get_http_version()
        fault = RequestHead(method, version, self.headers, is_upgrade, is_websocket).fault
        if fault or (is_websocket and not self._is_idle()):  # it would interfere with earlier responses
            self._reject((HTTPStatus.BAD_REQUEST, fault or ""))
        if self.client and any(name == b"x-forwarded-for" for name, _ in self.headers):
            self._guard.warn_of_proxy(self.client[0])
        super().on_headers_complete()
        self._begin(_Part.BODY)
        self._body_started_at = self.loop.time()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._num_pending_bytes = 0
        self._num_body_bytes += len(body)
        self._num_unread_bytes += len(body) if self.cycle.response_complete else 0
        if self._num_unread_bytes > _MAX_UNREAD_BYTES:
            self._reject(UNREADABLE)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._begin(_Part.NONE)

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

    def _begin(self, part: _Part) -> None:
        self._part = part
        self._num_line_bytes = self._num_body_bytes = self._num_unread_bytes = 0
        self._num_pending_bytes = 0
        self._stop_waiting()

    def _count_line(self, num_bytes: int) -> None:
        self._num_pending_bytes = 0
        self._num_line_bytes += num_bytes
        if self._num_line_bytes > self._max_line_bytes():
            self._reject(_TOO_LARGE)

    def _max_line_bytes(self) -> int:
        """Return how many bytes the head may have, or what stands between and after chunks of a body."""
        return _MAX_TRAILER_BYTES if self._part is _Part.BODY else _MAX_HEAD_BYTES

    def _reject(self, fault: Fault) -> NoReturn:
        """Have the parser stop: nothing after this is read."""
        self._fault = fault
        raise HttpParserError(fault[1])

    def _watch(self) -> None:
        """Limit the time of what has arrived in part, and what the parser may hold of it."""
        if self._part is _Part.NEVER:
            return
        if self._part is _Part.NONE and not self._is_idle():
            return
        if self._num_pending_bytes > self._max_line_bytes():
            self._end(_TOO_LARGE)
        elif self._deadline is None:
            is_body = self._part is _Part.BODY
            self._wait(self._limits.body_seconds if is_body else self._limits.header_seconds)

    def _on_late(self) -> None:
        """Close a connection whose request is late; a body has more time for what has arrived of it."""
        self._deadline = None
        if self._part is _Part.NONE:
            self.transport.close()
            return
        if self._part is _Part.HEAD:
            self._end((HTTPStatus.REQUEST_TIMEOUT, f"no headers after {self._limits.header_seconds:g} s"))
            return
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            self._num_body_bytes, self._body_started_at = 0, self.loop.time()  # it waited for this server
        due = self._limits.body_deadline(self._body_started_at, self._num_body_bytes) - self.loop.time()
        if due > 0:
            self._wait(due)
        else:
            self._end((HTTPStatus.REQUEST_TIMEOUT, "the body arrives too slowly"))

    def _end(self, fault: Fault) -> None:
        """Close the connection after the responses that it owes, the last of which tells the fault."""
        is_body = self._part is _Part.BODY
        if not is_body and not self._is_idle():
            self._part = _Part.NEVER
            self._stop_waiting()
            self.cycle.keep_alive = False
        elif is_body and (self.pipeline or self.cycle.response_started):
            self._close_last(b"")
        else:
            self._close_last(last_response(*fault))

    def _close_last(self, response: bytes) -> None:
        """Respond and close, but read on for a moment, so that the client gets the response."""
        self._part = _Part.NEVER
        self._disconnect(self.cycle)  # so that the application sends no response after this one
        if response:
            self.transport.write(response)
        self.flow.resume_reading()
        self._stop_waiting()
        self._deadline = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _disconnect(self, cycle: RequestResponseCycle | None) -> None:
        """Tell the application that nobody reads its response; uvicorn tells it of the last request alone."""
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _refuse(self) -> None:
        self._is_refused = True
        self._guard.num_refused += 1
        self._guard.warn_of_refusals(self.loop.time())
        if self._guard.num_refused > _MAX_REFUSED:
            self.transport.abort()

    def _answer_refused(self) -> None:
        """Respond to the first request."""
        detail = f"too many connections; retry after {_RETRY_SECONDS} s"
        self._close_last(
            last_response(HTTPStatus.SERVICE_UNAVAILABLE, detail, ServerUnavailable.code, _RETRY_SECONDS)
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
