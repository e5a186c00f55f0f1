"""A worker and the server that started it share a pipe: first a key, then nothing until the server's end."""

import asyncio
import os

import httpx
import pytest

from diffuserve.agent.parent import Parent
from support.waiting import eventually


async def test_requests_wait_for_the_key_and_send_it() -> None:
    reader, writer = os.pipe()
    sent: list[httpx.Request] = []

    def respond(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200)

    async with httpx.AsyncClient(transport=httpx.MockTransport(respond), auth=Parent(reader)) as http:
        requests = [asyncio.create_task(http.get("http://plane/")) for _ in range(2)]
        os.write(writer, b"s3c")
        for _ in range(10):
            await asyncio.sleep(0)
        assert sent == []
        os.write(writer, b"ret\n")
        await asyncio.gather(*requests)
        assert {request.headers["authorization"] for request in sent} == {"Bearer s3cret"}
    asyncio.get_running_loop().remove_reader(reader)
    os.close(reader)
    os.close(writer)


async def test_the_worker_ends_with_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    codes: list[int] = []

    def end(code: int) -> None:
        asyncio.get_running_loop().remove_reader(reader)
        codes.append(code)

    monkeypatch.setattr("diffuserve.agent.parent.os._exit", end)
    Parent(reader)
    os.close(writer)
    await eventually(lambda: codes == [1])
    os.close(reader)
