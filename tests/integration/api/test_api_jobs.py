"""Jobs over HTTP, from their submission to their deletion."""

import asyncio
import json
from dataclasses import fields
from typing import Any

import httpx
import pytest

from diffuserve.domain.resources.job import JobResource
from support.hand_worker import PNG, HandWorker

CAT: dict[str, Any] = {"input": {"prompt": "a cat", "seed": 7}}


async def submit(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await http.post("/v1/jobs", json=CAT | body)
    assert answer.status_code == 202, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def test_a_job_goes_from_submit_to_an_image(http: httpx.AsyncClient, worker: HandWorker) -> None:
    answer = await http.post("/v1/jobs", json=CAT | {"metadata": {"order": 1}, "priority": "batch"})
    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == job["urls"]["self"] == f"http://api.test/v1/jobs/{job['id']}"
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
    assert running["progress"] == {"step": 1, "total": 4, "fraction": 0.25}
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
async def test_every_job_has_the_documented_shape(
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


async def test_without_a_seed_one_is_drawn_and_kept(http: httpx.AsyncClient, worker: HandWorker) -> None:
    first = await submit(http, input={"prompt": "a cat"})
    second = await submit(http, input={"prompt": "a cat"})
    assert first["input"]["seed"] != second["input"]["seed"]
    [lease] = await worker.claim()
    assert lease.input["seed"] == first["input"]["seed"]
    await worker.release(lease)
    [again] = await worker.claim()
    assert again.input["seed"] == first["input"]["seed"]


async def test_prefer_wait_answers_with_the_final_job(
    http: httpx.AsyncClient, busy_worker: HandWorker
) -> None:
    answer = await http.post("/v1/jobs", json=CAT, headers={"prefer": "respond-async, wait=30"})
    assert answer.status_code == 200
    assert answer.headers["preference-applied"] == "wait=30"
    assert answer.json()["status"] == "succeeded"


async def test_prefer_wait_gives_the_job_back_unfinished_when_time_is_up(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    answer = await http.post("/v1/jobs", json=CAT, headers={"prefer": "wait=0"})
    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "wait=0"


async def test_no_wait_is_longer_than_a_minute(http: httpx.AsyncClient, busy_worker: HandWorker) -> None:
    answer = await http.post("/v1/jobs", json=CAT, headers={"prefer": "wait=3600"})
    assert answer.headers["preference-applied"] == "wait=60"


async def test_the_same_key_and_body_give_the_same_job(http: httpx.AsyncClient, worker: HandWorker) -> None:
    key = {"idempotency-key": "order-1"}
    first = await http.post("/v1/jobs", json={"input": {"prompt": "a cat", "width": 64}}, headers=key)
    second = await http.post("/v1/jobs", json={"input": {"width": 64, "prompt": "a cat"}}, headers=key)
    assert first.json()["id"] == second.json()["id"]
    assert first.json()["input"]["seed"] == second.json()["input"]["seed"]


async def test_the_same_key_with_another_body_is_refused(http: httpx.AsyncClient, worker: HandWorker) -> None:
    key = {"idempotency-key": "order-1"}
    await http.post("/v1/jobs", json=CAT, headers=key)
    answer = await http.post("/v1/jobs", json=CAT | {"metadata": {"b": 1}}, headers=key)
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_mismatch")


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
        (CAT | {"timeout": 1e12}, "timeout"),
        (CAT | {"metadata": {"a": "x" * 20_000}}, "metadata"),
        (CAT | {"metadata": {"a": 10**30}}, "metadata"),
        (CAT | {"metadata": "text"}, "metadata"),
    ],
)
async def test_bad_input_is_refused_by_name(
    http: httpx.AsyncClient, worker: HandWorker, body: dict[str, Any], field: str
) -> None:
    content = json.dumps(body)  # in ASCII, half characters included
    answer = await http.post("/v1/jobs", content=content, headers={"content-type": "application/json"})
    problem = answer.json()
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in problem["errors"]] == [field]
    assert problem["errors"][0]["message"]
    assert (problem["retryable"], problem["status"]) == (False, 422)
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert (await http.get("/v1/jobs")).json()["data"] == []


async def test_an_image_of_too_many_pixels_is_413(http: httpx.AsyncClient, worker: HandWorker) -> None:
    answer = await http.post("/v1/jobs", json={"input": {"prompt": "a", "width": 256, "height": 128}})
    assert (answer.status_code, answer.json()["code"]) == (413, "picture_too_large")
    assert answer.json()["errors"][0]["field"] == "input.size"


async def test_an_unknown_model_is_404_and_the_answer_names_those_there_are(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    answer = await http.post("/v1/jobs", json=CAT | {"model": "flux-9"})
    assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
    assert "hand" in answer.json()["detail"]


async def test_before_any_worker_came_the_client_should_ask_again(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/jobs", json=CAT)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["retryable"] is True


async def test_pages_go_back_in_time_without_gaps(http: httpx.AsyncClient, worker: HandWorker) -> None:
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


async def test_lists_may_be_limited_to_statuses(http: httpx.AsyncClient, worker: HandWorker) -> None:
    first, second = await submit(http), await submit(http)
    await http.post(first["urls"]["cancel"])
    canceled = (await http.get("/v1/jobs", params={"status": "canceled"})).json()["data"]
    assert [job["id"] for job in canceled] == [first["id"]]
    both = (await http.get("/v1/jobs", params={"status": ["canceled", "queued"]})).json()["data"]
    assert {job["id"] for job in both} == {first["id"], second["id"]}


async def test_a_queued_job_is_canceled_at_once_and_for_good(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    job = await submit(http)
    for _ in range(2):
        answer = await http.post(job["urls"]["cancel"])
        assert (answer.status_code, answer.json()["status"]) == (200, "canceled")
    assert await worker.claim() == []


async def test_a_running_job_is_canceling_until_its_worker_lets_go(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    job = await submit(http)
    [lease] = await worker.claim()
    answer = await http.post(job["urls"]["cancel"])
    assert (answer.status_code, answer.json()["status"]) == (202, "canceling")
    orders = (await http.get(f"/v1/workers/{worker.id}/control")).json()
    assert orders == {"cancel": [job["id"]], "lost": [], "drain": False}
    await worker.release(lease)
    assert (await http.get(job["urls"]["self"])).json()["status"] == "canceled"


async def test_the_tag_changes_with_status_and_progress_alone(
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


async def test_a_wait_with_a_tag_ends_with_the_next_news(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job = await submit(http)
    [lease] = await worker.claim()
    tag = (await http.get(job["urls"]["self"])).headers["etag"]
    request = http.get(job["urls"]["self"], params={"wait": 30}, headers={"if-none-match": tag}, timeout=40)
    waiting = asyncio.create_task(request)
    await worker.report(lease, 2, 4)
    answer = await waiting
    assert answer.status_code == 200
    assert answer.json()["progress"]["step"] == 2


async def test_operators_may_queue_a_failed_job_again(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job = await submit(http)
    await worker.fail((await worker.claim())[0])
    failed = (await http.get(job["urls"]["self"])).json()
    message = "the engine says broken"
    assert failed["error"] == {"code": "broken", "message": message, "retryable": False, "safety": {}}
    answer = await http.post(f"{job['urls']['self']}/requeue")
    assert (answer.status_code, answer.json()["status"]) == (202, "queued")
    again = await http.post(f"{job['urls']['self']}/requeue")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")


async def test_a_deleted_job_is_gone_with_its_files(http: httpx.AsyncClient, worker: HandWorker) -> None:
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
async def test_what_cannot_exist_is_not_found(http: httpx.AsyncClient, job_id: str) -> None:
    answer = await http.get(f"/v1/jobs/{job_id}")
    assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
