"""A worker's metrics are served to a few, and nobody holds a connection for long."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest
from prometheus_client import CollectorRegistry, Counter

from diffuserve.agent.metrics_server import MAX_CONNECTIONS, MetricsServer
from support.ports import free_port
from support.waiting import HANG_SECONDS, eventually

_REGISTRY = CollectorRegistry()
_COUNTER = Counter("jobs", "Jobs.", registry=_REGISTRY)
_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: worker\r\n\r\n"


class Served:
    """A server on loopback, which gives each connection `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.server, self.port = MetricsServer(_REGISTRY, seconds), free_port()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, request: bytes) -> str:
        reader, writer = await self.connect()
        writer.write(request)
        try:
            async with asyncio.timeout(HANG_SECONDS):
                return (await reader.read()).decode()
        except ConnectionError:
            return "closed"
        finally:
            writer.close()


@pytest.fixture
async def served(request: pytest.FixtureRequest) -> AsyncGenerator[Served]:
    served = Served(getattr(request, "param", HANG_SECONDS))
    await served.server.start("127.0.0.1", served.port)
    yield served
    served.server.close()


async def test_metrics_are_served_on_connections_for_one_request(served: Served) -> None:
    answer = await served.ask(_REQUEST)
    assert answer.startswith("HTTP/1.1 200 OK\r\n")
    assert "jobs_total 0.0" in answer
    open_metrics = b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text; version=1.0.0\r\n\r\n"
    assert "# EOF" in await served.ask(open_metrics)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET /else HTTP/1.1", "404"),
        (b"POST /metrics HTTP/1.1", "400"),
        (b"", "400"),
        (b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text; version=x", "400"),
    ],
)
async def test_nothing_else_is_served(served: Served, line: bytes, status: str) -> None:
    assert (await served.ask(line + b"\r\n\r\n")).startswith(f"HTTP/1.1 {status} ")


async def test_a_head_without_an_end_is_not_kept(served: Served) -> None:
    assert await served.ask(b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 100_000) in ("", "closed")


@pytest.mark.parametrize("served", [1.0], indirect=True)
async def test_idle_connections_end_and_keep_nobody_out_for_long(served: Served) -> None:
    idle = [await served.connect() for _ in range(3 * MAX_CONNECTIONS)]
    async with asyncio.timeout(HANG_SECONDS):
        for reader, _ in idle:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
    await eventually(lambda: served.server.num_open == 0)
    assert "200 OK" in await served.ask(_REQUEST)
    for _, writer in idle:
        writer.close()


async def test_connections_over_the_limit_are_closed(served: Served) -> None:
    idle = [await served.connect() for _ in range(MAX_CONNECTIONS)]
    await eventually(lambda: served.server.num_open == MAX_CONNECTIONS)
    assert await served.ask(_REQUEST) in ("", "closed")
    for _, writer in idle:
        writer.close()
    await eventually(lambda: served.server.num_open == 0)
    assert "200 OK" in await served.ask(_REQUEST)
