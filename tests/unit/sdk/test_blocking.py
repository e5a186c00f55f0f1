"""The client without an event loop is the one with a loop, method by method."""

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

import diffuserve
from diffuserve.client.batches import BatchClient
from diffuserve.client.files import FileClient
from diffuserve.client.webhooks import WebhookClient
from diffuserve.sdk.blocking import BlockingClient, LoopThread, blocking, iterating
from diffuserve.sdk.client import BlockingBatches, BlockingFiles, BlockingWebhooks, Client
from support.waiting import HANG_SECONDS


class Slow:
    """Has a method of each kind, and tells whether its work was ended."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    async def double(self, number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    async def count(self, below: int) -> AsyncGenerator[int]:
        try:
            for number in range(below):
                yield number
        finally:
            self.ended.set()

    async def hang(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


class BlockingSlow(BlockingClient):
    double = blocking(Slow.double)
    count = iterating(Slow.count)
    hang = blocking(Slow.hang)


async def nothing() -> None:
    pass


def public(kind: type[Any]) -> dict[str, inspect.Signature]:
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name: inspect.signature(method) for name, method in methods if not name.startswith("_")}


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (Client, diffuserve.AsyncClient),
        (BlockingFiles, FileClient),
        (BlockingBatches, BatchClient),
        (BlockingWebhooks, WebhookClient),
    ],
)
def test_every_method_has_its_counterpart(own: type[Any], other: type[Any]) -> None:
    assert public(own).keys() == public(other).keys()
    assert {name: given for name, given in public(own).items() if name != "close"} == {
        name: given for name, given in public(other).items() if name != "close"
    }


def test_a_call_waits_for_its_value_and_an_iteration_for_each_of_its_values() -> None:
    loop, slow = LoopThread(), Slow()
    client = BlockingSlow(loop, slow)
    assert client.double(4) == 8
    assert list(client.count(3)) == [0, 1, 2]
    loop.close(nothing())


def test_an_iteration_that_is_left_ends_what_it_iterates() -> None:
    loop, slow = LoopThread(), Slow()
    numbers = BlockingSlow(loop, slow).count(3)
    assert next(numbers) == 0
    numbers.close()  # type: ignore[attr-defined]
    assert slow.ended.is_set()
    loop.close(nothing())


def test_it_may_be_used_within_a_running_loop() -> None:
    async def main() -> int:
        loop = LoopThread()
        try:
            return BlockingSlow(loop, Slow()).double(4)
        finally:
            loop.close(nothing())

    assert asyncio.run(main()) == 8


def test_an_interrupted_call_cancels_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, slow = LoopThread(), Slow()
    submit = asyncio.run_coroutine_threadsafe

    def interrupted(*arguments: Any) -> Any:
        future = submit(*arguments)
        assert slow.begun.wait(HANG_SECONDS)
        monkeypatch.setattr(future, "result", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        return future

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        BlockingSlow(loop, slow).hang()
    assert slow.ended.is_set(), "the program may end now"
    monkeypatch.undo()
    loop.close(nothing())


def test_a_closed_client_refuses_every_call() -> None:
    client = Client("http://server", transport=httpx.MockTransport(lambda _: httpx.Response(200, json={})))
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.get("j1")


def test_a_client_from_before_a_fork_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = LoopThread()
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    with pytest.raises(RuntimeError, match="in each process"):
        BlockingSlow(loop, Slow()).double(1)
