"""Ending of requests that would go on for long: when the server stops, or their key is revoked."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from starlette.responses import Response

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_POLICY_VIOLATION = 1008  # close code of RFC 6455
_STATE = "open_request"


class Interruptible:
    """An ASGI application whose open requests can be ended, each with a complete response."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._requests: set[OpenRequest] = set()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        if scope["type"] not in ("http", "websocket") or task is None:
            await self._app(scope, receive, send)
            return
        request = OpenRequest(task, scope, receive, send)
        scope.setdefault("state", {})[_STATE] = request
        self._requests.add(request)
        try:
            await self._app(scope, receive, request.send)
        except asyncio.CancelledError:
            if request.last_response is None:
                raise
            await request.finish(request.last_response)
        finally:
            self._requests.discard(request)
            request.forget()

    def cut(self, *, only_idle: bool = False) -> None:
        """End every open request: a stream where it is, a long poll with 503 and `retry-after`.

        `only_idle` ends those alone that wait for news. WebSockets are left to the server, which closes them.
        """
        for request in list(self._requests):
            if request.scope["type"] == "http" and (request.is_idle or not only_idle):
                request.end(Response(status_code=503, headers={"retry-after": "1"}))


class OpenRequest:
    """A request or WebSocket that is being served, whose response may have begun."""

    def __init__(self, task: asyncio.Task[Any], scope: Message, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.last_response: Response | None = None
        self.is_idle = False
        self._task = task
        self._receive = receive
        self._send = send
        self._is_started = False
        self._is_complete = False
        self._group: set[OpenRequest] | None = None

    def join(self, group: "set[OpenRequest]") -> None:
        """Be one of a group, until the request ends."""
        self._group = group
        group.add(self)

    def forget(self) -> None:
        """Leave the group."""
        if self._group is not None:
            self._group.discard(self)

    def end(self, response: Response) -> None:
        """End the request with this response, or where it is if it has another already."""
        self.last_response = response
        self._task.cancel()

    async def send(self, message: Message) -> None:
        """Send a message, and note how far the response has come."""
        self._is_started = True
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True
        await self._send(message)

    async def finish(self, response: Response) -> None:
        """Complete the response that was begun, or send this one."""
        if not self._is_started:
            await response(self.scope, self._receive, self._send)
        elif self.scope["type"] == "websocket":
            await self._send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": ""})
        elif not self._is_complete:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


@contextmanager
def idle(scope: Message) -> Iterator[None]:
    """Let a stopping server end the request of this scope at once within the block: it waits for news."""
    request = open_request(scope)
    if request is None:
        yield
        return
    request.is_idle = True
    try:
        yield
    finally:
        request.is_idle = False


def open_request(scope: Message) -> OpenRequest | None:
    """Return what ends the request of this scope, `None` if the server has no `Interruptible`."""
    found: OpenRequest | None = scope.get("state", {}).get(_STATE)
    return found
