"""Open requests end with a proper answer when a server stops."""

import asyncio
from typing import Any

import pytest

from diffuserve.cli.interruptible import App, Interruptible, Message, Receive, Send

START: Message = {"type": "http.response.start", "status": 200, "headers": []}


async def hang(scope: Message, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


async def stream(scope: Message, receive: Receive, send: Send) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    await asyncio.Event().wait()


async def answer(scope: Message, receive: Receive, send: Send) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"all"})
    await asyncio.Event().wait()  # work that goes on once the answer is out


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


async def test_a_wait_is_told_to_ask_again() -> None:
    first, last = await sent_when_cut(hang)
    assert first["status"] == 503
    assert (b"retry-after", b"1") in first["headers"]
    assert not last["more_body"]


async def test_a_stream_ends_where_it_is() -> None:
    sent = await sent_when_cut(stream)
    assert [message.get("body") for message in sent] == [None, b"one", b""]
    assert not sent[-1]["more_body"]


async def test_an_answer_that_is_out_stays_as_it_is() -> None:
    assert len(await sent_when_cut(answer)) == 2


async def test_a_request_that_is_canceled_otherwise_is_no_business_of_ours() -> None:
    async def receive() -> Message:
        return {}

    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent")

    request = asyncio.create_task(_run(Interruptible(hang)({"type": "http"}, receive, send)))
    await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
