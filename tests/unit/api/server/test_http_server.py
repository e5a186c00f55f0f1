"""The HTTP server: where it listens, and how it ends."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from diffuserve.api.http.interruptible import idle
from diffuserve.api.server import http_server
from diffuserve.api.server.http_server import serving
from diffuserve.cli.exit_codes import INTERRUPTED
from diffuserve.cli.servers.event_loop import run, stop_on_signals
from diffuserve.cli.servers.listening import address_of, listen
from diffuserve.domain.addresses import is_loopback
from diffuserve.domain.errors import InvalidParams
from support.waiting import HANG_SECONDS


def test_a_port_in_use_is_refused_with_a_remedy() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidParams, match=rf"port={port}: .* already in use; --port 0"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(InvalidParams, match=host):
        listen(host, 0)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "example.com", "127.0.0.1.example.com", ""]
)
def test_addresses_that_other_machines_may_reach_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_addresses_that_only_this_machine_reaches_are_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")])
def test_the_address_is_reachable_from_this_machine(host: str, shown: str) -> None:
    with listen(host, 0) as listener:
        assert address_of(listener) == f"http://{shown}:{listener.getsockname()[1]}"


@pytest.mark.parametrize("host", ["::1", "::"])
def test_an_ipv6_address_is_in_brackets(host: str) -> None:
    class Listener:
        def getsockname(self) -> tuple[str, int, int, int]:
            return host, 8000, 0, 0

    assert address_of(Listener()) == "http://[::1]:8000"  # type: ignore[arg-type]


def test_a_coroutine_runs_in_an_event_loop_of_its_own() -> None:
    async def loop_id() -> int:
        return id(asyncio.get_running_loop())

    assert run(loop_id()) != 0


async def test_requests_are_served_within_the_block() -> None:
    app = FastAPI()
    app.get("/")(lambda: "ok")
    with listen("127.0.0.1", 0) as listener:
        url = address_of(listener)
        async with serving(app, listener), httpx.AsyncClient(base_url=url, trust_env=False) as http:
            assert (await http.get("/")).json() == "ok"
            assert "server" not in (await http.get("/")).headers
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            with pytest.raises(httpx.TransportError):
                await http.get("/")


async def test_an_open_stream_is_ended_when_the_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_GRACE_SECONDS", 0.0)
    app = FastAPI()

    async def events() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.Event().wait()

    @app.get("/")
    async def stream() -> StreamingResponse:
        return StreamingResponse(events())

    async def read(url: str, started: asyncio.Event) -> bytes:
        content = b""
        async with httpx.AsyncClient(trust_env=False) as http, http.stream("GET", url) as response:
            async for part in response.aiter_bytes():
                content += part
                started.set()
        return content

    started = asyncio.Event()
    with listen("127.0.0.1", 0) as listener:
        async with serving(app, listener):
            reading = asyncio.create_task(read(address_of(listener), started))
            await started.wait()
    assert await reading == b"first"


async def test_a_request_that_waits_for_news_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_GRACE_SECONDS", "_LONGEST_SHUTDOWN_SECONDS"):
        monkeypatch.setattr(http_server, name, 1_000_000)
    app, started = FastAPI(), asyncio.Event()

    @app.get("/")
    async def poll(request: Request) -> None:
        with idle(request.scope):
            started.set()
            await asyncio.Event().wait()

    with listen("127.0.0.1", 0) as listener:
        async with httpx.AsyncClient(base_url=address_of(listener), trust_env=False) as http:
            async with serving(app, listener):
                polling = asyncio.create_task(http.get("/", timeout=HANG_SECONDS))
                await started.wait()
            assert (await polling).status_code == 503


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGINT, [INTERRUPTED]), (signal.SIGTERM, [])])
async def test_a_signal_asks_to_stop_and_a_second_ctrl_c_ends_the_process(
    number: signal.Signals, ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    stop = stop_on_signals()
    try:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        await stop.wait()
        assert codes == []
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.05)  # for what must not happen to happen
        assert codes == ends
    finally:
        for handled in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(handled)


def test_ipv6_is_listened_on_where_the_machine_has_it() -> None:
    try:
        probe = socket.socket(socket.AF_INET6)
        probe.bind(("::1", 0))
        probe.close()
    except OSError:
        with pytest.raises(InvalidParams, match="::1"):
            listen("::1", 0)
        return
    with listen("::1", 0) as listener:
        assert address_of(listener).startswith("http://[::1]:")
