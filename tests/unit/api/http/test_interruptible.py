"""Open requests end with a complete response when a server stops."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from diffuserve.api.http.interruptible import App, Interruptible, Message, Receive, Send, idle

START: Message = {"type": "http.response.start", "status": 200, "headers": []}


async def hang(scope: Message, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


async def stream(scope: Message, receive: Receive, send: Send) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    await asyncio.Event().wait()


async def respond(scope: Message, receive: Receive, send: Send) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"all"})
    await asyncio.Event().wait()  # work that continues after the response


async def sent_when_cut(app: App) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    interruptible = Interruptible(app)
    request = asyncio.create_task(_run(interruptible({"type": "http"}, receive, send)))
    await asyncio.sleep(0)
    interruptible.cut()
    await request
    return sent


async def _run(call: Any) -> None:
    await call


async def test_a_long_poll_gets_503_and_retry_after() -> None:
    first, last = await sent_when_cut(hang)
    assert first["status"] == 503
    assert (b"retry-after", b"1") in first["headers"]
    assert not last.get("more_body")


async def test_a_stream_ends_where_it_is() -> None:
    sent = await sent_when_cut(stream)
    assert [message.get("body") for message in sent] == [None, b"one", b""]
    assert not sent[-1]["more_body"]


async def test_a_complete_response_is_left_alone() -> None:
    assert len(await sent_when_cut(respond)) == 2


async def test_a_request_canceled_by_its_client_gets_no_response() -> None:
    async def receive() -> Message:
        return {}

    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent")

    request = asyncio.create_task(_run(Interruptible(hang)({"type": "http"}, receive, send)))
    await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


async def test_requests_that_wait_for_news_are_ended_first() -> None:
    """Open two requests, of which one is idle."""
    responses: dict[str, int] = {}

    async def wait(scope: Message, _receive: Receive, _send: Send) -> None:
        with idle(scope) if scope["path"] == "/idle" else nullcontext():
            await asyncio.Event().wait()

    async def receive() -> Message:
        return {}

    async def open_path(interruptible: Interruptible, path: str) -> None:
        async def send(message: Message) -> None:
            responses.setdefault(path, message.get("status", 0))

        await interruptible({"type": "http", "path": path}, receive, send)

    interruptible = Interruptible(wait)
    requests = {path: asyncio.create_task(open_path(interruptible, path)) for path in ("/idle", "/busy")}
    await asyncio.sleep(0)
    interruptible.cut(only_idle=True)
    await requests["/idle"]
    assert responses == {"/idle": 503}
    interruptible.cut()
    await requests["/busy"]
    assert responses == {"/idle": 503, "/busy": 503}


async def test_without_a_server_that_ends_requests_waiting_is_as_usual() -> None:
    with idle({}):
        pass
