"""Batches over HTTP, from their submission to their results as JSON lines."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import orjson
import pytest
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.client.codec import decode
from diffuserve.domain.resources.batch import BatchPage, BatchResource, BatchResult
from diffuserve.domain.tenant import Plan, PlanOverrides, Role
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.webhook_turns import SendLimits
from diffuserve.jobs.store import JobStore
from support.hand_worker import PNG, HandWorker
from support.waiting import HANG_SECONDS

JSONL = {"content-type": "application/jsonl"}


@pytest.fixture
def store_config() -> StoreConfig:
    plan = Plan(name="wide", max_running=10_000, max_queued=60_000)
    return StoreConfig(plans={"wide": plan}, default_plan="wide")


def item(number: int, **values: Any) -> dict[str, Any]:
    return {"custom_id": f"item-{number}", "input": {"prompt": f"cat {number}"} | values}


def lines(items: Iterable[Any]) -> bytes:
    return b"".join(orjson.dumps(item) + b"\n" for item in items)


async def send(http: httpx.AsyncClient, items: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    response = await http.post("/v1/batches", json={"items": items} | options)
    assert response.status_code == 202
    batch: dict[str, Any] = response.json()
    return batch


async def get(http: httpx.AsyncClient, batch: dict[str, Any]) -> dict[str, Any]:
    response = await http.get(batch["urls"]["self"])
    document: dict[str, Any] = response.raise_for_status().json()
    return document


async def results(http: httpx.AsyncClient, batch: dict[str, Any]) -> list[dict[str, Any]]:
    response = await http.get(batch["urls"]["results"])
    assert response.headers["content-type"] == "application/jsonl"
    return [orjson.loads(line) for line in response.content.splitlines()]


async def test_a_batch_is_submitted_run_and_fetched(http: httpx.AsyncClient, worker: HandWorker) -> None:
    response = await http.post(
        "/v1/batches", json={"items": [item(n) for n in range(3)], "metadata": {"a": 1}}
    )
    batch = response.json()
    decode(BatchResource, response.content)
    assert response.headers["location"] == batch["urls"]["self"]
    assert (batch["status"], batch["num_items"], batch["metadata"]) == ("running", 3, {"a": 1})
    assert batch["counts"]["queued"] == 3

    leases = await worker.claim(num_jobs=3)
    for lease in leases[:2]:
        await worker.complete(lease)
    await worker.fail(leases[2])
    done = await get(http, batch)
    assert (done["status"], done["counts"]["succeeded"], done["counts"]["failed"]) == ("completed", 2, 1)
    assert done["finished_at"] is not None

    found = await results(http, batch)
    assert [result["custom_id"] for result in found] == ["item-0", "item-1", "item-2"]
    assert decode(BatchResult, orjson.dumps(found[0])).custom_id == "item-0"
    assert (await http.get(found[0]["result"]["artifacts"][0]["url"])).content == PNG
    assert found[2]["error"]["code"] == "broken"
    job = (await http.get(f"/v1/jobs/{found[0]['job_id']}")).json()
    assert (job["batch_id"], job["custom_id"], job["priority"]) == (batch["id"], "item-0", "batch")


async def test_a_batch_may_be_sent_as_json_lines(http: httpx.AsyncClient, worker: HandWorker) -> None:
    body = lines(item(n) for n in range(2_500)) + b"\n"
    query = {"priority": "standard", "output_format": "webp"}
    response = await http.post("/v1/batches", content=body, headers=JSONL, params=query)
    assert response.status_code == 202
    assert response.json()["counts"]["queued"] == 2_500
    [lease] = await worker.claim()
    assert lease.output_format == "webp"
    job = (await http.get(f"/v1/jobs/{lease.job_id}")).json()
    assert (job["input"]["prompt"], job["priority"]) == ("cat 0", "standard")


async def test_every_invalid_item_is_named_and_no_item_is_stored(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    items = [item(0), item(1, width=7), {"custom_id": "a"}, item(3, height=4_096), item(0)]
    response = await http.post("/v1/batches", json={"items": items})
    assert response.status_code == 422
    assert [error["field"] for error in response.json()["errors"]] == [
        "items.1.input.width",
        "items.2.input",
        "items.3.input.height",
        "items.4.custom_id",
    ]
    assert "number 0" in response.json()["errors"][3]["message"]
    assert (await http.get("/v1/batches")).json()["data"] == []
    assert (await http.get("/v1/jobs")).json()["data"] == []


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (b'{"custom_id": "a", "input": {"prompt": "a cat"}}\n{oops\n', "lines.1", "is not JSON"),
        (b"[1]\n", "lines.0", "must be a JSON object"),
        (b"\n\n", "body", "has no items"),
    ],
)
async def test_an_invalid_line_is_named(
    http: httpx.AsyncClient, worker: HandWorker, body: bytes, field: str, message: str
) -> None:
    response = await http.post("/v1/batches", content=body, headers=JSONL)
    assert response.status_code == 422
    [problem] = response.json()["errors"]
    assert problem["field"] == field
    assert message in problem["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{oops", "body"),
        (b"[]", "items"),
        (b'{"items": {}}', "items"),
        (b'{"items": []}', "items"),
        (b'{"items": [{}], "color": 1}', "color"),
        (lines([{"items": [item(n) for n in range(1_001)]}]), "items"),
    ],
    ids=["broken", "list", "object", "empty", "unknown", "too many"],
)
async def test_an_invalid_body_is_rejected(
    http: httpx.AsyncClient, worker: HandWorker, body: bytes, field: str
) -> None:
    headers = {"content-type": "application/json"}
    response = await http.post("/v1/batches", content=body, headers=headers)
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == field


async def test_options_of_a_json_body_are_rejected_in_the_query(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    response = await http.post("/v1/batches?priority=batch", json={"items": [item(0)]})
    assert response.status_code == 422
    assert "body" in response.json()["detail"]


async def test_body_sizes_are_limited(make_app: Callable[[ApiConfig], FastAPI], worker: HandWorker) -> None:
    app = make_app(ApiConfig(max_body_bytes=1_000, max_batch_bytes=2_000))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.test") as http:
        long = [item(n, prompt="a cat" * 100) for n in range(3)]
        inline = await http.post("/v1/batches", json={"items": long})
        as_lines = await http.post("/v1/batches", content=lines(long), headers=JSONL)
        too_long = await http.post("/v1/batches", content=lines(long * 2), headers=JSONL)
        single = await http.post("/v1/jobs", json=item(0, prompt="a cat" * 300))
    assert [sent.status_code for sent in (inline, as_lines, too_long, single)] == [413, 202, 413, 413]
    assert "JSON lines" in inline.json()["detail"]


async def test_an_idempotency_key_makes_a_batch_safe_to_repeat(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    key, items = {"idempotency-key": "monday"}, [item(n) for n in range(5)]
    responses = await asyncio.gather(
        *(http.post("/v1/batches", json={"items": items}, headers=key) for _ in range(4))
    )
    assert len({response.json()["id"] for response in responses}) == 1
    assert len(await store.jobs.list_jobs()) == 5
    other = await http.post("/v1/batches", json={"items": items[:4]}, headers=key)
    assert other.json()["code"] == "idempotency_mismatch"


async def test_an_interrupted_submission_continues_where_it_stopped(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, body = {"idempotency-key": "monday"} | JSONL, lines(item(n) for n in range(2_300))
    add = store.batches.add

    async def add_once(batch_id: str, start: int, chunk: Any) -> int:
        if start:
            raise ConnectionError("as if the process had been killed")
        return await add(batch_id, start, chunk)

    monkeypatch.setattr(store.batches, "add", add_once)
    assert (await http.post("/v1/batches", content=body, headers=key)).status_code == 500
    [batch] = (await http.get("/v1/batches")).json()["data"]
    assert (batch["status"], batch["counts"]["queued"]) == ("accepting", 100)
    monkeypatch.setattr(store.batches, "add", add)
    again = (await http.post("/v1/batches", content=body, headers=key)).json()
    assert (again["id"], again["status"], again["counts"]["queued"]) == (batch["id"], "running", 2_300)


async def test_a_batch_can_be_canceled(http: httpx.AsyncClient, worker: HandWorker) -> None:
    batch = await send(http, [item(n) for n in range(1_000)])
    [lease] = await worker.claim()
    canceled = await http.post(batch["urls"]["cancel"])
    assert canceled.status_code == 202
    assert canceled.json()["status"] == "canceling"
    async with asyncio.timeout(HANG_SECONDS):
        while (await get(http, batch))["counts"]["queued"]:
            await asyncio.sleep(0.01)
    assert lease.job_id in (await worker.heartbeat(lease))["cancel"]
    await worker.complete(lease)
    async with asyncio.timeout(HANG_SECONDS):
        while (await get(http, batch))["status"] != "canceled":
            await asyncio.sleep(0.01)
    assert (await http.post(batch["urls"]["cancel"])).status_code == 200
    assert {result["status"] for result in await results(http, batch)} == {"canceled"}


async def test_batches_are_listed_in_pages(http: httpx.AsyncClient, worker: HandWorker) -> None:
    sent = [(await send(http, [item(0)]))["id"] for _ in range(3)]
    first = (await http.get("/v1/batches", params={"limit": 2})).json()
    decode(BatchPage, orjson.dumps(first))
    rest = (await http.get("/v1/batches", params={"after": first["next"]})).json()
    assert [batch["id"] for batch in first["data"] + rest["data"]] == sorted(sent, reverse=True)
    assert (first["has_more"], rest["has_more"]) == (True, False)


@pytest.mark.parametrize("path", ["/v1/batches/batch_none", "/v1/batches/..%00", "/v1/batches/none/results"])
async def test_an_unknown_batch_is_not_found(http: httpx.AsyncClient, path: str) -> None:
    response = await http.get(path)
    assert (response.status_code, response.json()["code"]) == (404, "batch_not_found")


async def test_the_end_of_a_batch_is_written_into_the_outbox(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    await send(http, [item(0)], webhook={"url": "https://hooks.example/"})
    [lease] = await worker.claim()
    await worker.complete(lease)
    [due] = await store.webhooks.find_due((), SendLimits(total=10))
    assert due.type == "batch.completed"


async def test_a_batch_above_its_tenants_plan_is_refused_before_its_items_are_checked(
    http: httpx.AsyncClient, store: JobStore
) -> None:
    _, worker = await store.keys.create(Role.WORKER)
    _, key = await store.keys.create(Role.TENANT, tenant_id="ada", overrides=PlanOverrides(max_queued=5))
    http.headers["authorization"] = f"Bearer {worker}"
    await HandWorker.register(http)
    http.headers["authorization"] = f"Bearer {key}"
    response = await http.post("/v1/batches", content=lines([{"oops": 1}] * 6), headers=JSONL)
    assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert "6 items are more than the 5 jobs" in response.json()["detail"]
