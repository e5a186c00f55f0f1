"""Batches from files, through OpenAI's client."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
from fastapi import FastAPI
from openai import AsyncOpenAI
from openai.types import Batch

from diffuserve.api.openai.batch_runner import FileBatchRunner
from diffuserve.api.openai.batch_work import BatchWorkParts
from support.waiting import HANG_SECONDS

ANYBODY = "any"  # what a server without keys takes for one
GENERATIONS: Any = "/v1/images/generations"  # a text that the client's types do not know as one of theirs


@asynccontextmanager
async def working(app: FastAPI) -> AsyncGenerator[None]:
    """Work at the batches of an application within the block."""
    task = asyncio.create_task(FileBatchRunner(app.state.services.part(BatchWorkParts)).run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def line(custom_id: str, url: str = GENERATIONS, method: str = "POST", **body: Any) -> dict[str, Any]:
    """Return a request; its prompt is "a cat" unless the body has another."""
    return {"custom_id": custom_id, "method": method, "url": url, "body": {"prompt": "a cat"} | body}


def jsonl(lines: Iterable[Any]) -> bytes:
    """Return a file of lines: bytes as they are, all else as JSON."""
    return b"".join((given if isinstance(given, bytes) else orjson.dumps(given)) + b"\n" for given in lines)


async def create(
    client: AsyncOpenAI, lines: Iterable[Any], endpoint: Any = GENERATIONS, **more: Any
) -> Batch:
    """Upload lines, and create their batch."""
    file = await client.files.create(file=("lines.jsonl", jsonl(lines)), purpose="batch")
    more = {"completion_window": "24h"} | more
    return await client.batches.create(endpoint=endpoint, input_file_id=file.id, **more)


async def until(client: AsyncOpenAI, batch: Batch, *statuses: str) -> Batch:
    """Return the batch once it has one of these statuses."""
    async with asyncio.timeout(HANG_SECONDS):
        while (batch := await client.batches.retrieve(batch.id)).status not in statuses:
            await asyncio.sleep(0.02)
    return batch


async def lines_of(client: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """Return the answers in an output or error file."""
    assert file_id is not None
    content = await client.files.content(file_id)
    return [orjson.loads(text) for text in content.text.splitlines()]
