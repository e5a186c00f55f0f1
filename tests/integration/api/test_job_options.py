"""Options of jobs through the API: who may, what is refused, what falls back, and what is gone afterwards."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from diffuserve.domain.jobs.job_options import JOB_OPTIONS
from diffuserve.domain.tenant import Plan
from diffuserve.jobs.config import StoreConfig
from support.hand_worker import HAND_SPEC, HandWorker

CAT = {"input": {"prompt": "a cat", "seed": 1}}
QUICK = replace(HAND_SPEC, name="quick", num_inference_steps=2, max_size=128)


@pytest.fixture(params=[tuple(JOB_OPTIONS)])
def store_config(request: pytest.FixtureRequest) -> StoreConfig:
    plan = Plan(name="some", job_options=request.param)
    return StoreConfig(plans={"some": plan}, default_plan="some", delivered_seconds=0.0)


async def accepted(http: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    response = await http.post("/v1/jobs", json=body)
    assert response.is_success, response.text
    document: dict[str, Any] = response.json()
    return document


async def test_a_job_tells_its_options(http: httpx.AsyncClient, worker: HandWorker) -> None:
    plain = await accepted(http, CAT)
    assert (plain["store"], plain["max_attempts"], plain["kept_until"]) == (True, None, None)
    job = await accepted(http, CAT | {"store": False, "max_attempts": 1, "worker_hint": "session 7"})
    assert (job["store"], job["max_attempts"], job["worker_hint"]) == (False, 1, "session 7")
    flat = await http.post("/generate", json={"prompt": "a cat", "max_attempts": 2})
    assert (await http.get(f"/v1/jobs/{flat.json()['job_id']}")).json()["max_attempts"] == 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"retention_seconds": 10 * 86_400}, "retention_seconds"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"start_timeout_seconds": 5, "expires_in": 6}, "start_timeout_seconds"),
        ({"fallback_model": "hand"}, "fallback_model"),
        ({"worker_hint": ""}, "worker_hint"),
        ({"store": "no"}, "store"),
    ],
)
async def test_what_cannot_be_is_refused(
    http: httpx.AsyncClient, worker: HandWorker, options: dict[str, Any], field: str
) -> None:
    refused = await http.post("/v1/jobs", json=CAT | options)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, field)


@pytest.mark.parametrize("store_config", [("max_attempts",)], indirect=True)
async def test_a_plan_says_which_options_its_jobs_may_have(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    await accepted(http, CAT | {"max_attempts": 1, "store": True, "worker_hint": None})
    for body in (CAT | {"store": False}, CAT | {"worker_hint": "a"}):
        refused = await http.post("/v1/jobs", json=body)
        assert (refused.status_code, refused.json()["code"]) == (403, "option_not_allowed")
    assert (await http.get("/v1/plan")).json()["job_options"] == ["max_attempts"]


async def test_items_of_a_batch_have_some_of_them(http: httpx.AsyncClient, worker: HandWorker) -> None:
    items = [{"custom_id": "a", "input": CAT["input"]}]
    lines = '{"custom_id": "b", "input": {"prompt": "a cat"}}'
    headers = {"content-type": "application/jsonl"}
    (await http.post("/v1/batches", json={"items": items, "max_attempts": 1})).raise_for_status()
    sent = await http.post("/v1/batches?worker_hint=h&max_attempts=2", content=lines, headers=headers)
    sent.raise_for_status()
    jobs = {job["custom_id"]: job for job in (await http.get("/v1/jobs")).json()["data"]}
    assert (jobs["a"]["max_attempts"], jobs["b"]["max_attempts"], jobs["b"]["worker_hint"]) == (1, 2, "h")
    refused = await http.post("/v1/batches", json={"items": items, "store": False})
    assert refused.status_code == 422


async def test_a_job_that_is_not_stored_is_gone_once_it_was_fetched(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    jobs = [await accepted(http, CAT | {"store": False}) for _ in range(3)]
    jobs.append(await accepted(http, CAT))
    for lease in await worker.claim(4):
        await worker.complete(lease)
    paths = []
    for job in jobs:
        artifact = (await http.get(job["urls"]["self"])).json()["result"]["artifacts"][0]
        paths.append(artifact["url"])
    before = [await kept_until(http, job) for job in jobs]
    by_key, _by_url, _untouched, stored = jobs
    for url in (by_key["urls"]["result"], paths[1], stored["urls"]["result"]):
        assert (await http.get(url)).is_success
    after = [await kept_until(http, job) for job in jobs]
    assert [new < old for new, old in zip(after, before, strict=True)] == [True, True, False, False]


async def kept_until(http: httpx.AsyncClient, job: dict[str, Any]) -> str:
    return str((await http.get(job["urls"]["self"])).json()["kept_until"])


async def test_a_model_that_no_worker_has_is_replaced_at_once(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    quick = await HandWorker.register(http, [QUICK], name="quick")
    unknown = await accepted(http, CAT | {"model": "unknown", "fallback_model": "quick"})
    assert (unknown["model"], unknown["requested_model"]) == ("quick", "unknown")
    assert unknown["input"]["num_inference_steps"] == 2
    served = await accepted(http, CAT | {"model": "hand", "fallback_model": "quick"})
    assert (served["model"], served["fallback_model"], served["requested_model"]) == ("hand", "quick", None)
    await worker.deregister()
    await asyncio.sleep(1.1)  # who serves what is known for a second
    left = await accepted(http, CAT | {"model": "hand", "fallback_model": "quick"})
    assert (left["model"], left["requested_model"]) == ("quick", "hand")
    assert [lease.job_id for lease in await quick.claim(4)] == [unknown["id"], left["id"]]
    assert (await http.get(left["urls"]["self"])).json()["cost_seconds"] == unknown["cost_seconds"]


async def test_a_job_that_is_not_started_falls_back_with_its_prompt(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    quick = await HandWorker.register(http, [QUICK], name="quick")
    job = await accepted(
        http, CAT | {"model": "hand", "fallback_model": "quick", "start_timeout_seconds": 0.1}
    )
    await asyncio.sleep(0.15)
    [lease] = await quick.claim(1)
    assert (lease.input["prompt"], lease.input["seed"], lease.input["num_inference_steps"]) == ("a cat", 1, 2)
    await quick.complete(lease)
    ended = (await http.get(job["urls"]["self"])).json()
    assert (ended["status"], ended["model"], ended["requested_model"]) == ("succeeded", "quick", "hand")


async def test_both_models_must_be_able_to_draw_it(http: httpx.AsyncClient, worker: HandWorker) -> None:
    await HandWorker.register(http, [QUICK], name="quick")
    large = {"input": {"prompt": "a cat", "width": 192, "height": 64}, "model": "hand"}
    refused = (await http.post("/v1/jobs", json=large | {"fallback_model": "quick"})).json()
    assert (refused["status"], refused["errors"][0]["field"]) == (422, "fallback_model")
    assert "quick" in refused["detail"]
    assert "width" in refused["detail"]
    missing = await http.post("/v1/jobs", json=CAT | {"model": "hand", "fallback_model": "unknown"})
    assert (missing.status_code, "fallback_model" in missing.json()["detail"]) == (404, True)
