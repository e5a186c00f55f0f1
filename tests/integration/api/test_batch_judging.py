"""Prompts of a batch are judged after a look at the queue, once, and at the tenant's rate."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.api.submit.prompt_processor import PromptProcessor
from diffuserve.domain.errors import ModerationUnavailable
from diffuserve.domain.safety import PASSES, Action, FilterInfo, Finding, Verdict
from diffuserve.domain.tenant import Plan
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.quotas.local import LocalQuotas
from diffuserve.storage.local import LocalArtifactStore
from support.hand_worker import HandWorker

PLAN = Plan(name="small", max_queued=100, requests_per_second=10)


class RecordingFilter:
    """Blocks prompts with `forbidden`, flags those with `odd`, and keeps all that it was asked."""

    info = FilterInfo("recording", "1")

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_down = False

    async def check(self, prompt: str, tenant_id: str = "") -> Verdict:
        [verdict] = await self.check_all([prompt], tenant_id)
        return verdict

    async def check_all(self, prompts: Sequence[str], tenant_id: str = "") -> list[Verdict]:
        if self.is_down:
            raise ModerationUnavailable("the filter is down")
        self.asked += prompts
        await asyncio.sleep(0)
        return [_verdict(prompt) for prompt in prompts]

    async def close(self) -> None: ...


def _verdict(prompt: str) -> Verdict:
    for word, action in (("forbidden", Action.BLOCK), ("odd", Action.FLAG)):
        if word in prompt:
            return Verdict((Finding(word, action, "term"),))
    return PASSES


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store_config() -> StoreConfig:
    return StoreConfig(plans={"small": PLAN}, default_plan="small")


@pytest.fixture
def prompt_filter() -> RecordingFilter:
    return RecordingFilter()


@pytest.fixture
def quota_clock() -> Clock:
    return Clock()


@pytest.fixture
async def app(
    store: JobStore,
    artifacts: LocalArtifactStore,
    bus: MemoryEventBus,
    prompt_filter: RecordingFilter,
    quota_clock: Clock,
) -> AsyncGenerator[FastAPI]:
    processor = PromptProcessor(prompt_filter)
    app = create_app(store, artifacts, bus, ApiConfig(), LocalQuotas(quota_clock), processor)
    yield app
    await app.state.services.background_tasks.finish()


def items(numbers: Sequence[int], **prompts: str) -> list[dict[str, Any]]:
    return [
        {"custom_id": f"item-{number}", "input": {"prompt": prompts.get(f"at_{number}", f"cat {number}")}}
        for number in numbers
    ]


async def send(http: httpx.AsyncClient, body: list[dict[str, Any]], key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"idempotency-key": key}
    return await http.post("/v1/batches", json={"items": body}, headers=headers)


async def test_room_in_the_queue_is_looked_for_before_a_prompt_is_judged(
    http: httpx.AsyncClient, worker: HandWorker, prompt_filter: RecordingFilter, quota_clock: Clock
) -> None:
    too_large = await send(http, items(range(101)))
    assert (too_large.status_code, too_large.json()["code"]) == (413, "too_large")
    assert (await send(http, items(range(60)))).status_code == 202
    assert len(prompt_filter.asked) == 60
    quota_clock.now = 60.0
    full = await send(http, items(range(41)))
    assert (full.status_code, full.json()["code"]) == (429, "queue_full")
    assert len(prompt_filter.asked) == 60


async def test_of_two_batches_at_once_past_the_limit_one_runs_and_one_leaves_nothing(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore, quota_clock: Clock
) -> None:
    responses = await asyncio.gather(*(send(http, items(range(80))) for _ in range(2)))
    assert sorted(response.status_code for response in responses) == [202, 429]
    [batch] = (await http.get("/v1/batches")).json()["data"]
    assert (batch["status"], batch["counts"]["queued"]) == ("running", 80)
    assert len(await store.jobs.list_jobs(limit=200)) == 80


async def test_items_are_charged_at_the_rate_of_requests_beside_single_ones(
    http: httpx.AsyncClient, worker: HandWorker, prompt_filter: RecordingFilter, quota_clock: Clock
) -> None:
    assert (await send(http, items(range(50)))).status_code == 202
    refused = await send(http, items(range(2)))
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert "items of batches" in refused.json()["detail"]
    wait = int(refused.headers["retry-after"])
    assert 4 <= wait <= 5, "50 items at 10 a second, less a burst"
    assert len(prompt_filter.asked) == 50
    single = await http.post("/v1/jobs", json={"input": {"prompt": "a cat"}})
    assert single.status_code == 202, "a batch does not hold up its tenant's single requests"
    quota_clock.now += wait
    assert (await send(http, items(range(2)))).status_code == 202


async def test_a_repeated_submission_is_judged_and_charged_for_what_is_left(
    http: httpx.AsyncClient,
    worker: HandWorker,
    store: JobStore,
    prompt_filter: RecordingFilter,
    quota_clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body, add = items(range(30), at_25="an odd cat"), store.batches.add

    async def interrupted(batch_id: str, start: int, chunk: Any) -> int:
        if start:
            raise ConnectionError("as if the process had been killed")
        return await add(batch_id, start, chunk)

    monkeypatch.setattr("diffuserve.api.batches.submission.ITEMS_AT_ONCE", 20)
    monkeypatch.setattr(store.batches, "add", interrupted)
    assert (await send(http, body, "monday")).status_code == 500
    monkeypatch.setattr(store.batches, "add", add)
    quota_clock.now = 3.0
    prompt_filter.asked.clear()
    assert (await send(http, body, "monday")).json()["status"] == "running"
    assert sorted(prompt_filter.asked) == sorted(item["input"]["prompt"] for item in body[20:])
    prompt_filter.asked.clear()
    again = await send(http, body, "monday")
    assert (again.status_code, prompt_filter.asked) == (202, [])
    [entry] = await store.audit.newest()
    assert entry.action is Action.FLAG


async def test_a_batch_without_a_key_that_fails_is_canceled(
    http: httpx.AsyncClient,
    worker: HandWorker,
    store: JobStore,
    app: FastAPI,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add = store.batches.add

    async def interrupted(batch_id: str, start: int, chunk: Any) -> int:
        if start:
            raise ConnectionError("as if a disk had failed")
        return await add(batch_id, start, chunk)

    monkeypatch.setattr("diffuserve.api.batches.submission.ITEMS_AT_ONCE", 20)
    monkeypatch.setattr(store.batches, "add", interrupted)
    assert (await send(http, items(range(30)))).status_code == 500
    await app.state.services.background_tasks.finish()
    [batch] = (await http.get("/v1/batches")).json()["data"]
    assert (batch["status"], batch["counts"]["canceled"]) == ("canceled", 20)


async def test_the_first_blocked_items_are_named_in_order(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    blocked = {f"at_{number}": f"forbidden {number}" for number in range(3, 90, 3)}
    response = await send(http, items(range(90), **blocked))
    fields = [error["field"] for error in response.json()["errors"]]
    assert fields == [f"items.{number}.input.prompt" for number in range(3, 63, 3)]
    assert "forbidden" in response.json()["errors"][0]["message"]
    assert await store.jobs.list_jobs() == []
    assert {entry.action for entry in await store.audit.newest()} == {Action.BLOCK}


async def test_no_item_passes_a_filter_that_is_down(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore, prompt_filter: RecordingFilter
) -> None:
    prompt_filter.is_down = True
    response = await send(http, items(range(90)))
    assert (response.status_code, response.json()["code"]) == (503, "moderation_unavailable")
    assert (await http.get("/v1/batches")).json()["data"] == []
