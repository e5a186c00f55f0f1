"""Batches from files with the official `openai` package, unmodified, against a live server."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI
from openai.types import Batch

from diffuserve.api.openai.batch_runner import FileBatchRunner
from diffuserve.api.openai.batch_work import BatchParts
from diffuserve.domain.tenant import Plan
from diffuserve.jobs.config import StoreConfig
from support.hand_worker import HandWorker
from support.waiting import HANG_SECONDS

GENERATIONS: Any = "/v1/images/generations"


@pytest.fixture
def store_config() -> StoreConfig:
    plan = Plan(name="wide", max_running=10_000, max_queued=60_000)
    return StoreConfig(plans={"wide": plan}, default_plan="wide")


@asynccontextmanager
async def working(app: FastAPI) -> AsyncGenerator[None]:
    """Work at the batches of an application within the block."""
    task = asyncio.create_task(FileBatchRunner(app.state.services.part(BatchParts)).run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.fixture
async def runner(app: FastAPI) -> AsyncGenerator[None]:
    async with working(app):
        yield


def line(custom_id: str, url: str = GENERATIONS, method: str = "POST", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": method, "url": url, "body": {"prompt": "a cat"} | body}


def jsonl(lines: Iterable[Any]) -> bytes:
    return b"".join((given if isinstance(given, bytes) else orjson.dumps(given)) + b"\n" for given in lines)


async def create(client: AsyncOpenAI, lines: Iterable[Any], endpoint: Any = GENERATIONS, **more: Any) -> Batch:
    file = await client.files.create(file=("lines.jsonl", jsonl(lines)), purpose="batch")
    more = {"completion_window": "24h"} | more
    return await client.batches.create(endpoint=endpoint, input_file_id=file.id, **more)


async def until(client: AsyncOpenAI, batch: Batch, *statuses: str) -> Batch:
    async with asyncio.timeout(HANG_SECONDS):
        while (batch := await client.batches.retrieve(batch.id)).status not in statuses:
            await asyncio.sleep(0.02)
    return batch


async def lines_of(client: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    content = await client.files.content(file_id)
    return [orjson.loads(text) for text in content.text.splitlines()]




async def test_a_batch_is_created_followed_and_fetched(
    client: AsyncOpenAI, busy_worker: HandWorker, runner: None
) -> None:
    lines = [
        line("first", n=2),
        line("bad", size="7x7"),
        b"",
        line("seeded", seed=7, response_format="url"),
        line("other", model="unheard-of"),
    ]
    batch = await create(client, lines, metadata={"night": "one"})
    assert (batch.status, batch.object, batch.metadata) == ("validating", "batch", {"night": "one"})
    assert batch.id.startswith("batch_")
    assert (batch.endpoint, batch.completion_window) == (GENERATIONS, "24h")
    assert (batch.expires_at or 0) - batch.created_at == 86_400
    done = await until(client, batch, "completed", "failed")
    assert (done.status, done.errors, done.model) == ("completed", None, "hand")
    counts = done.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (4, 2, 2)
    assert batch.created_at <= (done.in_progress_at or 0) <= (done.finalizing_at or 0) <= (done.completed_at or 0)

    first, seeded = await lines_of(client, done.output_file_id)
    assert (first["custom_id"], first["error"], first["response"]["status_code"]) == ("first", None, 200)
    assert first["id"].startswith("batch_req_")
    assert [set(image) >= {"b64_json"} for image in first["response"]["body"]["data"]] == [True, True]
    [image] = seeded["response"]["body"]["data"]
    assert image["url"].startswith("http://")
    assert done.usage is not None
    usages = [answer["response"]["body"]["usage"] for answer in (first, seeded)]
    assert done.usage.output_tokens == sum(usage["output_tokens"] for usage in usages)
    assert done.usage.total_tokens == sum(usage["total_tokens"] for usage in usages)

    bad, other = await lines_of(client, done.error_file_id)
    assert (bad["custom_id"], bad["response"]["status_code"]) == ("bad", 400)
    assert bad["response"]["body"]["error"]["param"] == "size"
    assert bad["response"]["body"]["error"]["type"] == "invalid_request_error"
    assert (other["response"]["status_code"], other["response"]["body"]["error"]["code"]) == (404, "model_not_found")


