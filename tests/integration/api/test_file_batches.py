"""Batches from files with the official `openai` package, unmodified, against a live server."""

import asyncio
import base64
import io
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from openai import AsyncOpenAI, OpenAI

from diffuserve.domain.tenant import Plan
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import schema
from diffuserve.jobs.store import JobStore
from support.clips import CLIPS, MP4, completing
from support.file_batches import ANYBODY, GENERATIONS, create, jsonl, line, lines_of, until, working
from support.hand_worker import HAND_SPEC, HandWorker
from support.image_files import png
from support.waiting import HANG_SECONDS

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")

HOW_TO = Path(__file__).parents[3] / "docs/how-to/use-openai-batches.md"


@pytest.fixture
def store_config() -> StoreConfig:
    plan = Plan(name="wide", max_running=10_000, max_queued=60_000)
    return StoreConfig(plans={"wide": plan}, default_plan="wide")


@pytest.fixture
async def runner(app: FastAPI) -> AsyncGenerator[None]:
    async with working(app):
        yield


async def test_a_batch_is_created_followed_and_fetched(
    client: AsyncOpenAI, busy_worker: HandWorker, runner: None
) -> None:
    lines = [
        line("first", n=2),
        line("bad", n=11),
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
    times = [batch.created_at, done.in_progress_at or 0, done.finalizing_at or 0, done.completed_at or 0]
    assert times == sorted(times)

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
    assert bad["response"]["body"]["error"]["param"] == "n"
    assert bad["response"]["body"]["error"]["type"] == "invalid_request_error"
    assert other["response"]["status_code"] == 404
    assert other["response"]["body"]["error"]["code"] == "model_not_found"


async def test_the_blocking_client_has_every_method_of_files_and_batches(
    server: str, busy_worker: HandWorker, runner: None
) -> None:
    def use() -> None:
        with OpenAI(base_url=f"{server}/v1", api_key=ANYBODY, timeout=HANG_SECONDS) as client:
            kept: Any = {"anchor": "created_at", "seconds": 7_200}
            content = jsonl([line("a")])
            file = client.files.create(
                file=("night.jsonl", io.BytesIO(content)),
                purpose="batch",
                expires_after=kept,
            )
            assert (file.purpose, file.filename, file.bytes) == (
                "batch",
                "night.jsonl",
                len(content),
            )
            assert (file.expires_at or 0) - file.created_at == 7_200
            image = client.files.create(file=("a.png", png()), purpose="vision")
            assert client.files.retrieve(file.id) == file
            assert client.files.wait_for_processing(file.id) == file
            assert client.files.content(file.id).read() == content
            with pytest.warns(DeprecationWarning, match="content"):
                assert client.files.retrieve_content(file.id).encode() == content
            assert [found.id for found in client.files.list(limit=1)] == [image.id, file.id], "two pages"
            assert [found.id for found in client.files.list(order="asc")] == [file.id, image.id]
            assert [found.id for found in client.files.list(purpose="batch")] == [file.id]

            batches = [
                client.batches.create(
                    completion_window="24h",
                    endpoint=GENERATIONS,
                    input_file_id=file.id,
                    output_expires_after={"anchor": "created_at", "seconds": 3_600},
                )
                for _ in range(3)
            ]
            ids = [batch.id for batch in batches]
            assert [batch.id for batch in client.batches.list(limit=2)] == ids[::-1]
            assert client.batches.with_raw_response.retrieve(ids[0]).parse().id == ids[0]
            while (batch := client.batches.retrieve(ids[0])).status != "completed":
                pass
            assert client.batches.cancel(ids[2]).status in ("cancelling", "cancelled", "finalizing")
            output = client.files.retrieve(batch.output_file_id or "")
            assert (output.purpose, output.filename) == ("batch_output", f"{ids[0]}_output.jsonl")
            assert (output.expires_at or 0) - output.created_at == 3_600
            assert batch.error_file_id is None
            with client.files.with_streaming_response.content(output.id) as response:
                [answer] = [orjson.loads(text) for text in response.iter_lines()]
            assert answer["custom_id"] == "a"
            assert client.files.delete(output.id).deleted
            with pytest.raises(openai.NotFoundError):
                client.files.content(output.id)

    await asyncio.to_thread(use)


BROKEN = [
    line("a"),
    b"{oops",
    b"[1]",
    line("a"),
    line("b", method="GET"),
    line("c", url="/v1/videos"),
    {"method": "POST", "url": GENERATIONS, "body": {}},
    line("d") | {"body": []},
    line("e", prompt="x" * (1 << 20)),
    line("f" * 513),
]
FAULTS = [
    (2, "invalid_json_line", None),
    (3, "invalid_json_line", None),
    (4, "duplicate_custom_id", "custom_id"),
    (5, "invalid_method", "method"),
    (6, "mismatched_url", "url"),
    (7, "missing_required_parameter", "custom_id"),
    (8, "invalid_body", "body"),
    (9, "line_too_long", None),
    (10, "invalid_custom_id", "custom_id"),
]


async def test_a_file_whose_lines_are_no_requests_fails_before_anything_is_drawn(
    client: AsyncOpenAI, worker: HandWorker, runner: None, http: httpx.AsyncClient
) -> None:
    failed = await until(client, await create(client, BROKEN), "completed", "failed")
    assert (failed.status, failed.output_file_id, failed.error_file_id) == ("failed", None, None)
    assert failed.failed_at is not None
    assert failed.errors is not None
    found = failed.errors.data or []
    assert [(error.line, error.code, error.param) for error in found] == FAULTS
    assert all(error.message for error in found)
    blank = await until(client, await create(client, [b"", b"  "]), "completed", "failed")
    assert blank.errors is not None
    assert [error.code for error in blank.errors.data or []] == ["empty_file"]
    assert (await http.get("/v1/jobs")).json()["data"] == []


async def test_what_cannot_be_a_batch_is_refused_in_openais_form(
    client: AsyncOpenAI, http: httpx.AsyncClient, store: JobStore
) -> None:
    with pytest.raises(openai.BadRequestError, match="is empty"):
        await client.files.create(file=("a.jsonl", b""), purpose="batch")
    kept: Any = {"anchor": "created_at", "seconds": 60}
    with pytest.raises(openai.BadRequestError, match="3600") as short:
        await client.files.create(file=("a.jsonl", b"{}"), purpose="batch", expires_after=kept)
    assert short.value.param == "expires_after.seconds"
    image = await client.files.create(file=("a.png", png()), purpose="vision")
    for file_id, message in (("file-unheard-of", "no file"), (image.id, "'vision'")):
        with pytest.raises(openai.NotFoundError, match=message):
            await client.batches.create(input_file_id=file_id, endpoint=GENERATIONS, completion_window="24h")
    lines = await client.files.create(file=("a.jsonl", jsonl([line("a")])), purpose="batch")
    valid = {"input_file_id": lines.id, "endpoint": GENERATIONS, "completion_window": "24h"}
    for wrong, param in (
        ({"endpoint": "/v1/responses"}, "endpoint"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"metadata": dict.fromkeys(map(str, range(17)), "x")}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"colour": "red"}, "colour"),
    ):
        response = await http.post("/v1/batches", json=valid | wrong)  # not by OpenAI's client
        assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
    for call in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError, match="batch_file_7"):
            await call("batch_file_7")
    key = {"idempotency-key": "one"}
    first, again = [(await http.post("/v1/batches", json=valid, headers=key)).json() for _ in range(2)]
    assert first == again
    other = await http.post("/v1/batches", json=valid | {"completion_window": "1h"}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (400, "idempotency_mismatch")
    in_use = await http.delete(f"/v1/files/{lines.id}")
    assert (in_use.status_code, in_use.json()["code"]) == (409, "file_in_use")
    assert (await http.get("/v1/files")).json()["data"][0]["id"] == image.id, "our own clients list images"
    assert (await http.get("/v1/batches")).json()["data"] == []


@pytest.mark.parametrize("prefix", ["batch_file_", "batch_"])
async def test_a_cancelled_batch_keeps_what_it_has_drawn(
    client: AsyncOpenAI, worker: HandWorker, runner: None, http: httpx.AsyncClient, prefix: str
) -> None:
    batch = await create(client, [line(f"line-{number}") for number in range(5)])
    batch = await until(client, batch, "in_progress")
    leases = await worker.claim(num_jobs=2, wait=HANG_SECONDS)
    for lease in leases:
        await worker.complete(lease)
    own = (await http.get(f"/v1/batches/{batch.id.replace('batch_file_', 'batch_')}")).json()
    assert (own["num_items"], own["counts"]["succeeded"]) == (5, len(leases))
    await http.post(f"/v1/batches/{batch.id.replace('batch_file_', prefix)}/cancel")
    assert (await client.batches.retrieve(batch.id)).status in ("cancelling", "cancelled")
    done = await until(client, batch, "cancelled")
    assert done.cancelled_at is not None
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed) == (5, len(leases))
    drawn, others = await lines_of(client, done.output_file_id), await lines_of(client, done.error_file_id)
    ids = [answer["custom_id"] for answer in drawn + others]
    assert sorted(ids) == [f"line-{number}" for number in range(5)]
    assert {answer["error"]["code"] for answer in others} == {"batch_cancelled"}
    assert [answer["response"] for answer in others] == [None] * len(others)
    assert (await client.batches.cancel(batch.id)).status == "cancelled", "it is safe to repeat"


async def test_a_batch_ends_with_its_window(
    client: AsyncOpenAI, worker: HandWorker, app: FastAPI, store: JobStore
) -> None:
    batch = await create(client, [line("a"), line("b")], completion_window="1m")
    async with working(app):
        await until(client, batch, "in_progress")
        [lease] = await worker.claim(num_jobs=1, wait=HANG_SECONDS)
        await worker.complete(lease)
        late = sa.update(schema.file_batches).values(expires_at=0.0)
        await store.database.write(lambda transaction: transaction.execute(late).rowcount)
        done = await until(client, batch, "expired")
    assert done.expired_at is not None
    [drawn] = await lines_of(client, done.output_file_id)
    [other] = await lines_of(client, done.error_file_id)
    assert {drawn["custom_id"], other["custom_id"]} == {"a", "b"}
    assert other["error"]["code"] == "batch_expired"


async def test_the_examples_of_the_how_to_run(
    server: str,
    http: httpx.AsyncClient,
    runner: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = await HandWorker.register(http, [replace(HAND_SPEC, name="tiny-flux")])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    blocks = re.findall(r"```python no-run\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    assert len(blocks) == 3

    def run() -> None:
        names: dict[str, Any] = {}
        for block in blocks:
            exec(block.replace("http://127.0.0.1:8000", server), names)
        names["client"].close()

    working = asyncio.create_task(worker.work())
    await asyncio.to_thread(run)
    working.cancel()
    assert {path.name for path in tmp_path.glob("*.png")} == {f"card-{number}.png" for number in range(20)}


async def test_edits_name_images_by_ids_and_urls(
    client: AsyncOpenAI, http: httpx.AsyncClient, runner: None
) -> None:
    spec = replace(HAND_SPEC, max_input_images=1, has_strength=True)
    worker = await HandWorker.register(http, [spec])
    file = await client.files.create(file=("a.png", png()), purpose="vision")
    lines_file = await client.files.create(file=("a.jsonl", jsonl([line("a")])), purpose="batch")
    url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    edits: Any = "/v1/images/edits"
    lines = [
        line("by id", edits, images=[{"file_id": file.id}]),
        line("by URL", edits, images=[{"image_url": url}], strength=0.5),
        line("none", edits),
        line("lines", edits, images=[{"file_id": lines_file.id}]),
    ]
    batch = await create(client, lines, edits)
    await until(client, batch, "in_progress")
    for _ in range(2):
        [lease] = await worker.claim(wait=HANG_SECONDS)
        assert lease.input["image"]["id"] == file.id, "equal images are one file"
        await worker.complete(lease)
    done = await until(client, batch, "completed")
    drawn = await lines_of(client, done.output_file_id)
    assert [answer["custom_id"] for answer in drawn] == ["by id", "by URL"]
    refused = await lines_of(client, done.error_file_id)
    assert [answer["response"]["body"]["error"]["param"] for answer in refused] == ["images", "images"]


async def test_clips_are_answered_with_their_ids(
    client: AsyncOpenAI, http: httpx.AsyncClient, runner: None
) -> None:
    worker = await HandWorker.register(http, [HAND_SPEC, CLIPS])
    videos: Any = "/v1/videos"
    async with completing(worker):
        lines = [line("clip", videos, seconds="1"), line("odd", videos, seconds="0")]
        done = await until(client, await create(client, lines, videos), "completed", "failed")
    [answer] = await lines_of(client, done.output_file_id)
    video = answer["response"]["body"]
    assert (video["object"], video["status"]) == ("video", "completed")
    assert (await client.videos.download_content(video["id"])).read() == MP4
    [odd] = await lines_of(client, done.error_file_id)
    assert odd["response"]["body"]["error"]["param"] == "seconds"
    assert done.usage is not None
    assert done.usage.total_tokens == 0
