"""Outermost layer of the application, plain ASGI because it runs for every request."""

import logging
import re
import secrets
import time
from collections.abc import Collection
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diffuserve.api.auth.sessions import drop_other_cookies
from diffuserve.api.door.head_requests import send_headers_alone
from diffuserve.api.http.problem import Problem
from diffuserve.api.http.problems import problem_of, problem_response
from diffuserve.domain.trace_context import TraceContext
from diffuserve.telemetry import log_context, tracing
from diffuserve.telemetry.metrics import ControlMetrics
from diffuserve.telemetry.tracing import HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS, Span, SpanKind, Tracer

log = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499  # nginx's status; the client does not see it
_WORKERS = ("/v1/workers", "/v1/leases")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestMiddleware:
    """Gives each request an id, limits its body, measures and traces it, and turns an exception into a 500.

    The application sees only this server's own cookies. Routes that stream the body limit it themselves:
    those of PUT requests, and of `unbounded_paths`.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: ControlMetrics,
        max_body_bytes: int,
        unbounded_paths: Collection[str] = (),
        tracer: Tracer = tracing.OFF,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._tracer = tracer
        self._max_body_bytes = max_body_bytes
        self._unbounded_paths = unbounded_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        drop_other_cookies(scope)
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        log_context.bind(request_id=request_id)  # the task serves this request alone
        if scope["type"] == "http":
            await self._http(scope, headers, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        started_at = time.perf_counter()
        max_bytes = None if self._is_streamed(scope) else self._max_body_bytes
        exchange = _Exchange(scope, receive, send, max_bytes)
        span = self._span(scope, headers)
        tracing.enter(span.context)
        try:
            if problem := _declared_too_large(headers, max_bytes):
                await problem_response(problem, HTTPConnection(scope))(scope, receive, exchange.send)
            elif scope["method"] == "HEAD":
                await send_headers_alone(self._app, scope, exchange.receive, exchange.send)
            else:
                await self._app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            exchange.status = CLIENT_CLOSED_REQUEST  # a body that did not arrive; nobody reads a response
        except Exception as error:
            await exchange.fail(error)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            seconds = time.perf_counter() - started_at
            self._metrics.http_seconds.labels(scope["method"], route, exchange.status).observe(seconds)
            _end_span(span, scope["method"], route, exchange.status)

    def _span(self, scope: Scope, headers: Headers) -> Span:
        """Begin a span of the trace that a request belongs to. A client's POST may begin one.

        Other requests are polls, heartbeats and reads, of which there are many per job and none is worth a
        trace.
        """
        parent = TraceContext.parse(headers.get("traceparent"))
        is_begin = scope["method"] == "POST" and not scope["path"].startswith(_WORKERS)
        if parent is None and not (is_begin and self._tracer.begins_traces()):
            return Span()
        return self._tracer.start(scope["method"], parent, kind=SpanKind.SERVER)

    def _is_streamed(self, scope: Scope) -> bool:
        return scope["method"] == "PUT" or scope["path"] in self._unbounded_paths


class _Exchange:
    """A request and its response, as they pass through the middleware."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_bytes: int | None) -> None:
        self.status = 0
        self._scope = scope
        self._receive = receive
        self._send = send
        self._num_bytes, self._max_bytes = 0, max_bytes

    async def receive(self) -> Message:
        """Receive a message and count its bytes: a chunked body does not declare its length."""
        message = await self._receive()
        if self._max_bytes is not None and message["type"] == "http.request":
            self._num_bytes += len(message.get("body", b""))
            if self._num_bytes > self._max_bytes:
                raise _body_too_large(self._max_bytes)
        return message

    async def send(self, message: Message) -> None:
        """Send a message, with the request's id and its quota among the headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            state = self._scope["state"]
            headers = {"x-request-id": state["request_id"], **state.get("quota_headers", {})}
            MutableHeaders(scope=message).update(headers)
        await self._send(message)

    async def fail(self, error: Exception) -> None:
        """Respond with 500, or abort a response that has begun."""
        log.error("request %s failed", self._scope["state"]["request_id"], exc_info=error)
        if self.status:
            raise error
        response = problem_response(problem_of(error), HTTPConnection(self._scope))
        await response(self._scope, self._receive, self.send)


def _end_span(span: Span, method: str, route: str, status: int) -> None:
    """End a request's span. Its attributes name the route, not the path: a URL may hold a secret."""
    if span.is_recorded:
        span.rename(f"{method} {route}")
        span.set({HTTP_METHOD: method, HTTP_ROUTE: route, HTTP_STATUS: status})
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            span.fail(str(status))
    span.end()


def _request_id(requested: str | None) -> str:
    """Return the client's own id if it is safe to log, else a new one."""
    if requested and _REQUEST_ID.fullmatch(requested):
        return requested
    return secrets.token_hex(8)


def _declared_too_large(headers: Headers, max_bytes: int | None) -> Problem | None:
    length = headers.get("content-length", "0")
    if max_bytes is None or not length.isdecimal() or int(length) <= max_bytes:
        return None
    return problem_of(_body_too_large(max_bytes))


def _body_too_large(max_bytes: int) -> HTTPException:
    remedy = "send less; images are uploaded with POST /v1/files, and named by their ids"
    return HTTPException(413, f"the body has more than {max_bytes:,} bytes; {remedy}")
