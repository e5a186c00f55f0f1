"""Ending of long polls and streams, which would outlast the grace period of a server that stops."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Interruptible:
    """An ASGI application whose open requests can be ended, each with a complete response."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._requests: set[asyncio.Task[Any]] = set()
        self._is_ending = False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        if scope["type"] != "http" or task is None:
            await self._app(scope, receive, send)
            return
        response = _Response(send)
        self._requests.add(task)
        try:
            await self._app(scope, receive, response.send)
        except asyncio.CancelledError:
            if not self._is_ending:
                raise
            await response.end()
        finally:
            self._requests.discard(task)

    def cut(self) -> None:
        """End every open request: a stream where it is, a long poll with 503 and `retry-after`."""
        self._is_ending = True
        for task in self._requests:
            task.cancel()


class _Response:
    """A response, which knows whether it was started and completed."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_started = False
        self._is_complete = False

    async def send(self, message: Message) -> None:
        self._is_started = True
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True
        await self._send(message)

    async def end(self) -> None:
        if not self._is_started:
            headers = [(b"retry-after", b"1"), (b"content-length", b"0")]
            await self._send({"type": "http.response.start", "status": 503, "headers": headers})
        if not self._is_complete:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
