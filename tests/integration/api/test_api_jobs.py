"""Jobs over HTTP, from their submission to their deletion."""

import asyncio
import json
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from diffuserve.domain.resources.job import JobResource
from support.hand_worker import PNG, HandWorker

CAT: dict[str, Any] = {"input": {"prompt": "a cat", "seed": 7}}


async def submit(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await http.post("/v1/jobs", json=CAT | body)
    assert response.status_code == 202, response.text
    document: dict[str, Any] = response.json()
    return document


async def test_a_job_is_submitted_run_and_fetched(http: httpx.AsyncClient, worker: HandWorker) -> None:
    response = await http.post("/v1/jobs", json=CAT | {"metadata": {"order": 1}, "priority": "batch"})
    job = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == job["urls"]["self"] == f"http://api.test/v1/jobs/{job['id']}"
    assert job["status"] == "queued"
    assert job["queue"]["ahead"] == 0
    assert job["metadata"] == {"order": 1}
    assert job["priority"] == "batch"
    assert job["input"] == {
        "prompt": "a cat",
        "width": 64,
        "height": 64,
        "num_inference_steps": 4,
        "guidance_scale": 0.0,
        "seed": 7,
        "num_images": 1,
        "num_frames": 1,
        "max_sequence_length": 32,
    }

    [lease] = await worker.claim()
    await worker.report(lease, 1, 4)
    running = (await http.get(job["urls"]["self"])).json()
    assert (running["status"], running["phase"], running["attempt"]) == ("running", "denoise", 1)
    steps = {"step": 1, "total": 4, "fraction": 0.25}
    assert running["progress"] == steps | {"frames": 0, "num_frames": 0}
    assert running["queue"] is None

    assert (await worker.complete(lease)).json() == {"job_id": job["id"], "status": "succeeded"}
    done = (await http.get(job["urls"]["self"])).json()
    assert done["status"] == "succeeded"
    [artifact] = done["result"]["artifacts"]
    image = await http.get(artifact["url"])
    assert image.content == PNG
    assert image.headers["content-type"] == "image/png"
    assert int(image.headers["content-length"]) == artifact["size_bytes"] == len(PNG)


@pytest.mark.parametrize("status", ["queued", "running", "succeeded", "failed"])
async def test_every_job_has_the_documented_fields(
    http: httpx.AsyncClient, worker: HandWorker, status: str
) -> None:
    job = await submit(http)
    if status != "queued":
        [lease] = await worker.claim()
        if status == "succeeded":
            await worker.complete(lease)
        elif status == "failed":
            await worker.fail(lease)
    document = (await http.get(job["urls"]["self"])).json()
    assert document["status"] == status
    assert list(document) == [field.name for field in fields(JobResource)]


async def test_a_missing_seed_is_chosen_once_and_kept_in_retries(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    first = await submit(http, input={"prompt": "a cat"})
    second = await submit(http, input={"prompt": "a cat"})
    assert first["input"]["seed"] != second["input"]["seed"]
    [lease] = await worker.claim()
    assert lease.input["seed"] == first["input"]["seed"]
    await worker.release(lease)
    [again] = await worker.claim()
    assert again.input["seed"] == first["input"]["seed"]


async def test_prefer_wait_returns_the_final_job(http: httpx.AsyncClient, busy_worker: HandWorker) -> None:
    response = await http.post("/v1/jobs", json=CAT, headers={"prefer": "respond-async, wait=30"})
    assert response.status_code == 200
    assert response.headers["preference-applied"] == "wait=30"
    assert response.json()["status"] == "succeeded"


async def test_prefer_wait_returns_an_unfinished_job_after_the_wait(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    response = await http.post("/v1/jobs", json=CAT, headers={"prefer": "wait=0"})
    assert response.status_code == 202
    assert response.headers["preference-applied"] == "wait=0"


async def test_a_wait_is_limited_to_a_minute(http: httpx.AsyncClient, busy_worker: HandWorker) -> None:
    response = await http.post("/v1/jobs", json=CAT, headers={"prefer": "wait=3600"})
    assert response.headers["preference-applied"] == "wait=60"


async def test_the_same_key_and_body_give_the_same_job(http: httpx.AsyncClient, worker: HandWorker) -> None:
    key = {"idempotency-key": "order-1"}
    first = await http.post("/v1/jobs", json={"input": {"prompt": "a cat", "width": 64}}, headers=key)
    second = await http.post("/v1/jobs", json={"input": {"width": 64, "prompt": "a cat"}}, headers=key)
    assert first.json()["id"] == second.json()["id"]
    assert first.json()["input"]["seed"] == second.json()["input"]["seed"]
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"


async def test_the_same_key_with_another_body_is_rejected(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    key = {"idempotency-key": "order-1"}
    await http.post("/v1/jobs", json=CAT, headers=key)
    response = await http.post("/v1/jobs", json=CAT | {"metadata": {"b": 1}}, headers=key)
    assert (response.status_code, response.json()["code"]) == (422, "idempotency_mismatch")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"),
        ({"input": {}}, "input.prompt"),
        ({"input": {"prompt": ""}}, "input.prompt"),
        ({"input": {"prompt": "   "}}, "input.prompt"),
        ({"input": {"prompt": "x" * 2001}}, "input.prompt"),
        ({"input": {"prompt": "\ud800"}}, "input.prompt"),
        ({"input": {"prompt": "a", "width": 50}}, "input.width"),
        ({"input": {"prompt": "a", "width": "64"}}, "input.width"),
        ({"input": {"prompt": "a", "width": 512}}, "input.width"),
        ({"input": {"prompt": "a", "num_inference_steps": 101}}, "input.num_inference_steps"),
        ({"input": {"prompt": "a", "num_inference_steps": True}}, "input.num_inference_steps"),
        ({"input": {"prompt": "a", "guidance_scale": 3.5}}, "input.guidance_scale"),
        ({"input": {"prompt": "a", "negative_prompt": "b"}}, "input.negative_prompt"),
        ({"input": {"prompt": "a", "num_images": 11}}, "input.num_images"),
        ({"input": {"prompt": "a", "num_frames": 2}}, "input.num_frames"),
        ({"input": {"prompt": "a", "seed": -1}}, "input.seed"),
        ({"input": {"prompt": "a", "sed": 1}}, "input.sed"),
        (CAT | {"webhook": {"url": "http://"}}, "webhook.url"),
        (CAT | {"kind": "video.generate"}, "kind"),
        (CAT | {"priority": "urgent"}, "priority"),
        (CAT | {"expires_in": 0}, "expires_in"),
        (CAT | {"deadline": 0}, "deadline"),
        (CAT | {"deadline": "tomorrow"}, "deadline"),
        (CAT | {"deadline": "2026-01-01T00:00:00"}, "deadline"),
        (CAT | {"deadline": "2020-01-01T00:00:00Z"}, "deadline"),
        (CAT | {"deadline": "2999-01-01T00:00:00Z"}, "deadline"),
        (CAT | {"timeout": 1e12}, "timeout"),
        (CAT | {"metadata": {"a": "x" * 20_000}}, "metadata"),
        (CAT | {"metadata": {"a": 10**30}}, "metadata"),
        (CAT | {"metadata": "text"}, "metadata"),
    ],
)
async def test_invalid_input_is_rejected_with_its_field(
    http: httpx.AsyncClient, worker: HandWorker, body: dict[str, Any], field: str
) -> None:
    content = json.dumps(body)  # in ASCII, half characters included
    response = await http.post("/v1/jobs", content=content, headers={"content-type": "application/json"})
    problem = response.json()
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in problem["errors"]] == [field]
    assert problem["errors"][0]["message"]
    assert (problem["retryable"], problem["status"]) == (False, 422)
    assert problem["request_id"] == response.headers["x-request-id"]
    assert (await http.get("/v1/jobs")).json()["data"] == []


async def test_a_deadline_that_is_surely_missed_is_refused_with_the_estimate(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    job = (await http.post("/v1/jobs", json=CAT)).json()
    seconds = job["cost_seconds"]
    response = await http.post("/v1/jobs", json=CAT | {"deadline": 1.1 * seconds})
    problem = response.json()
    assert (response.status_code, problem["code"], problem["retryable"]) == (
        503,
        "deadline_unreachable",
        False,
    )
    assert 0 < problem["eta_s_low"] <= problem["eta_s_high"]
    accepted = await http.post("/v1/jobs", json=CAT | {"deadline": 1.1 * seconds, "best_effort": True})
    assert accepted.status_code == 202
    assert accepted.json()["best_effort"]
    at = datetime.now(UTC) + timedelta(hours=1)
    late = await http.post("/v1/jobs", json=CAT | {"deadline": at.isoformat()})
    shown = datetime.fromisoformat(late.json()["deadline"])
    assert abs(shown - at) < timedelta(minutes=1)


async def test_a_deadline_is_no_reason_to_refuse_a_job_that_is_there(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    trial = (await http.post("/v1/jobs", json=CAT)).json()
    await http.post(f"/v1/jobs/{trial['id']}/cancel")
    body = CAT | {"deadline": 2.0 * trial["cost_seconds"]}
    key = {"idempotency-key": "in-time"}
    job = (await http.post("/v1/jobs", json=body, headers=key)).json()
    while (await http.post("/v1/jobs", json=body)).status_code == 202:  # estimates are of the last second
        await asyncio.sleep(0.1)
    assert (await http.post("/v1/jobs", json=body, headers=key)).json()["id"] == job["id"]


async def test_an_image_of_too_many_pixels_is_413(http: httpx.AsyncClient, worker: HandWorker) -> None:
    response = await http.post("/v1/jobs", json={"input": {"prompt": "a", "width": 256, "height": 128}})
    assert (response.status_code, response.json()["code"]) == (413, "picture_too_large")
    assert response.json()["errors"][0]["field"] == "input.size"


async def test_an_unknown_model_is_404_and_lists_the_served_models(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    response = await http.post("/v1/jobs", json=CAT | {"model": "flux-9"})
    assert (response.status_code, response.json()["code"]) == (404, "model_not_found")
    assert "hand" in response.json()["detail"]


async def test_a_submission_before_the_first_worker_is_retryable(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/jobs", json=CAT)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["retryable"] is True


async def test_pages_list_every_job_newest_first(http: httpx.AsyncClient, worker: HandWorker) -> None:
    ids = [(await submit(http))["id"] for _ in range(5)]
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = (await http.get("/v1/jobs", params={"limit": 2, **after})).json()
        seen += [job["id"] for job in page["data"]]
        if not page["has_more"]:
            assert page["next"] is None
            break
        after = {"after": page["next"]}
    assert seen == sorted(ids, reverse=True)


async def test_lists_are_filtered_by_status(http: httpx.AsyncClient, worker: HandWorker) -> None:
    first, second = await submit(http), await submit(http)
    await http.post(first["urls"]["cancel"])
    canceled = (await http.get("/v1/jobs", params={"status": "canceled"})).json()["data"]
    assert [job["id"] for job in canceled] == [first["id"]]
    both = (await http.get("/v1/jobs", params={"status": ["canceled", "queued"]})).json()["data"]
    assert {job["id"] for job in both} == {first["id"], second["id"]}


async def test_a_queued_job_is_canceled_at_once(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job = await submit(http)
    for _ in range(2):
        response = await http.post(job["urls"]["cancel"])
        assert (response.status_code, response.json()["status"]) == (200, "canceled")
    assert await worker.claim() == []


async def test_a_running_job_is_canceling_until_its_worker_releases_it(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    job = await submit(http)
    [lease] = await worker.claim()
    response = await http.post(job["urls"]["cancel"])
    assert (response.status_code, response.json()["status"]) == (202, "canceling")
    orders = (await http.get(f"/v1/workers/{worker.id}/control")).json()
    assert orders == {"cancel": [job["id"]], "preempt": [], "lost": [], "drain": False, "order": None}
    await worker.release(lease)
    assert (await http.get(job["urls"]["self"])).json()["status"] == "canceled"


async def test_the_etag_changes_only_with_status_and_progress(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    job = await submit(http)
    url = job["urls"]["self"]
    tags = [(await http.get(url)).headers["etag"]]
    unchanged = await http.get(url, headers={"if-none-match": tags[0]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    [lease] = await worker.claim()
    tags.append((await http.get(url)).headers["etag"])
    await worker.report(lease, 1, 4)
    tags.append((await http.get(url)).headers["etag"])
    await worker.complete(lease)
    tags.append((await http.get(url)).headers["etag"])
    assert len(set(tags)) == 4


async def test_a_wait_ends_with_the_final_job(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job = await submit(http)
    waiting = asyncio.create_task(http.get(job["urls"]["self"], params={"wait": 30}, timeout=40))
    [lease] = await worker.claim()
    await worker.report(lease, 1, 4)
    assert not waiting.done()
    await worker.complete(lease)
    assert (await waiting).json()["status"] == "succeeded"


async def test_a_wait_with_an_etag_ends_with_the_next_change(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    job = await submit(http)
    [lease] = await worker.claim()
    tag = (await http.get(job["urls"]["self"])).headers["etag"]
    request = http.get(job["urls"]["self"], params={"wait": 30}, headers={"if-none-match": tag}, timeout=40)
    waiting = asyncio.create_task(request)
    await worker.report(lease, 2, 4)
    response = await waiting
    assert response.status_code == 200
    assert response.json()["progress"]["step"] == 2


async def test_operators_may_requeue_a_failed_job(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job = await submit(http)
    await worker.fail((await worker.claim())[0])
    failed = (await http.get(job["urls"]["self"])).json()
    message = "the engine says broken"
    assert failed["error"] == {"code": "broken", "message": message, "retryable": False, "safety": {}}
    response = await http.post(f"{job['urls']['self']}/requeue")
    assert (response.status_code, response.json()["status"]) == (202, "queued")
    again = await http.post(f"{job['urls']['self']}/requeue")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")


async def test_deleting_a_job_deletes_its_files(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job = await submit(http)
    [lease] = await worker.claim()
    await worker.complete(lease)
    image = (await http.get(job["urls"]["self"])).json()["result"]["artifacts"][0]["url"]
    assert (await http.delete(job["urls"]["self"])).status_code == 204
    assert (await http.get(job["urls"]["self"])).status_code == 404
    assert (await http.get(image)).status_code == 404
    assert (await http.delete(job["urls"]["self"])).status_code == 404


async def test_deleting_a_running_job_cancels_it(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job = await submit(http)
    [lease] = await worker.claim()
    assert (await http.delete(job["urls"]["self"])).status_code == 204
    assert (await http.get(job["urls"]["self"])).status_code == 404
    assert (await worker.heartbeat(lease))["cancel"] == [job["id"]]


@pytest.mark.parametrize("job_id", ["job_0", "no.such", "a%00b", "x" * 200, "%F0%9F%90%B1"])
async def test_a_malformed_job_id_is_not_found(http: httpx.AsyncClient, job_id: str) -> None:
    response = await http.get(f"/v1/jobs/{job_id}")
    assert (response.status_code, response.json()["code"]) == (404, "job_not_found")
