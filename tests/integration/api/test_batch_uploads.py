"""Bodies of batches arrive before anything waits for them, in bounded time and memory."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import cast

import httpx
import orjson
import pytest
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException

from diffuserve.api.config import MIB, ApiConfig
from diffuserve.api.door.upload import BatchUploads
from diffuserve.domain.errors import RateLimited, UploadTooSlow
from support.hand_worker import HandWorker
from support.virtual_time import in_virtual_time, now
from support.waiting import HANG_SECONDS

ITEM = orjson.dumps({"custom_id": "one", "input": {"prompt": "a cat"}})
JSONL = {"content-type": "application/jsonl"}
HEAD = (
    b"POST /v1/batches HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/jsonl\r\n"
    b"content-length: 9999\r\n\r\n"
)


@pytest.fixture
def config() -> ApiConfig:
    return ApiConfig(poll_seconds=0.2)


@pytest.fixture
def app(make_app: Callable[[ApiConfig], FastAPI], config: ApiConfig) -> FastAPI:
    return make_app(config)


class Sent:
    """The body of a request that arrives in chunks, each after a pause in seconds."""

    def __init__(self, *chunks: tuple[float, bytes]) -> None:
        self._chunks = chunks

    async def stream(self) -> AsyncIterator[bytes]:
        for pause, chunk in self._chunks:
            await asyncio.sleep(pause)
            yield chunk
        await asyncio.sleep(0)


def sent(*chunks: tuple[float, bytes]) -> Request:
    return cast(Request, Sent(*chunks))


async def size_of(uploads: BatchUploads, request: Request, max_bytes: int = 64 * MIB) -> int:
    async with uploads.received(request, "ada", max_bytes) as body:
        return len(body)


async def upload_slowly(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Announce a body, and send nothing of it."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(HEAD)
    await writer.drain()
    return reader, writer


async def test_idle_uploads_hold_up_no_batch(server: str, worker: HandWorker) -> None:
    idle = [await upload_slowly(server) for _ in range(20)]
    async with httpx.AsyncClient(base_url=server, timeout=HANG_SECONDS) as http:
        for number in range(3):
            item = ITEM.replace(b"one", f"item-{number}".encode())
            response = await http.post("/v1/batches", content=item, headers=JSONL)
            assert response.status_code == 202
    for _, writer in idle:
        assert not writer.is_closing()
        writer.close()


@pytest.mark.parametrize("config", [ApiConfig(upload_grace_seconds=0.2)], ids=["impatient"])
async def test_a_slow_upload_is_refused_and_its_connection_closed(server: str) -> None:
    reader, writer = await upload_slowly(server)
    async with asyncio.timeout(HANG_SECONDS):
        response = await reader.read()  # up to the end of the connection
    writer.close()
    head, _, body = response.partition(b"\r\n\r\n")
    problem = orjson.loads(body)
    assert head.startswith(b"HTTP/1.1 408 ")
    assert (problem["code"], problem["retryable"]) == ("upload_too_slow", True)
    assert "only 0 bytes" in problem["detail"]


@in_virtual_time
async def test_an_upload_must_keep_to_the_least_rate_and_to_the_deadline() -> None:
    config = ApiConfig(upload_grace_seconds=10, min_upload_bytes_per_second=1_000, upload_seconds=100)
    uploads = BatchUploads(config)
    assert await size_of(uploads, sent(*[(1.0, bytes(1_000))] * 60)) == 60_000
    started_at = now()
    with pytest.raises(UploadTooSlow, match="only 0 bytes"):
        await size_of(uploads, sent((11.0, b"x")))
    assert now() - started_at == pytest.approx(10)
    started_at = now()
    with pytest.raises(UploadTooSlow, match="only 2,000 bytes"):
        await size_of(uploads, sent((1.0, bytes(1_000)), (1.0, bytes(1_000)), *[(10.0, b"x")] * 99))
    assert now() - started_at == pytest.approx(12)
    started_at = now()
    patient = BatchUploads(replace(config, min_upload_bytes_per_second=1))
    with pytest.raises(UploadTooSlow, match="all within 100 s"):
        await size_of(patient, sent(*[(1.0, bytes(100))] * 120))
    assert now() - started_at == pytest.approx(100)


async def test_a_large_body_stays_out_of_memory() -> None:
    uploads, chunk = BatchUploads(ApiConfig()), bytes(MIB)
    tracemalloc.start()
    async with uploads.received(sent(*[(0.0, chunk)] * 20), "ada", 64 * MIB) as body:
        assert len(body) == 20 * MIB
        assert body[5 * MIB : 5 * MIB + 3] == bytes(3)
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * MIB


async def test_a_tenant_has_so_many_bytes_under_way_and_others_their_own() -> None:
    uploads = BatchUploads(ApiConfig(max_tenant_upload_bytes=1_000))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(uploads.received(sent((0.0, bytes(900))), "ada", 950))
        with pytest.raises(RateLimited, match="under way"):
            await size_of(uploads, sent((0.0, bytes(50)), (0.0, bytes(51))), 950)
        async with uploads.received(sent((0.0, bytes(900))), "bob", 950) as body:
            assert len(body) == 900
        with pytest.raises(HTTPException, match="JSON lines"):
            await size_of(uploads, sent((0.0, bytes(11))), 10)
    assert await size_of(uploads, sent((0.0, bytes(900))), 950) == 900


async def test_a_tenant_waits_for_its_own_batches_alone() -> None:
    uploads = BatchUploads(ApiConfig())
    async with uploads.slot("ada"), uploads.slot("ada"):
        assert uploads.slot("ada").locked()
        async with uploads.slot("bob"):
            assert not uploads.slot("bob").locked()
    assert not uploads.slot("ada").locked()


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (b"\n" * 100_002 + ITEM, "body", "50,000 items"),
        (ITEM + b"\n" + b" " * 262_145, "lines.1", "262,145 bytes"),
        (b" \n\r\n" + ITEM.replace(b"one", b""), "lines.0.custom_id", "at least 1 character"),
    ],
    ids=["blank", "long", "empty id"],
)
async def test_lines_are_bounded(
    http: httpx.AsyncClient, worker: HandWorker, body: bytes, field: str, message: str
) -> None:
    response = await http.post("/v1/batches", content=body, headers=JSONL)
    assert response.status_code == 422
    [error] = response.json()["errors"]
    assert error["field"] == field
    assert message in error["message"]


async def test_a_client_that_disconnects_while_it_sends_is_no_error(
    server: str, worker: HandWorker, caplog: pytest.LogCaptureFixture, app: FastAPI
) -> None:
    _, writer = await upload_slowly(server)
    writer.close()
    await writer.wait_closed()
    metrics = app.state.services.metrics
    async with asyncio.timeout(HANG_SECONDS):
        while 'route="/v1/batches",status="400"' not in metrics.text().decode():
            await asyncio.sleep(0.01)
    assert caplog.text == ""
