"""Request ids, limits, problems, health and metrics, which every request has."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.workers.worker import Worker
from diffuserve.jobs.store import JobStore
from support.hand_worker import HandWorker
from support.waiting import HANG_SECONDS, eventually

CAT = {"input": {"prompt": "a cat"}}


async def test_every_response_has_a_request_id(http: httpx.AsyncClient) -> None:
    ids = [(await http.get("/healthz")).headers["x-request-id"] for _ in range(2)]
    assert ids[0] != ids[1]
    assert (await http.get("/nowhere")).headers["x-request-id"]


@pytest.mark.parametrize(("sent", "is_kept"), [("trace-1.2", True), ("x" * 65, False), ("a b", False)])
async def test_a_client_request_id_is_kept_if_it_is_safe_to_log(
    http: httpx.AsyncClient, sent: str, is_kept: bool
) -> None:
    response = await http.get("/healthz", headers={"x-request-id": sent})
    assert (response.headers["x-request-id"] == sent) is is_kept


async def test_a_body_over_the_limit_is_413_with_and_without_content_length(http: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        for _ in range(17):
            yield b" " * (1 << 16)

    declared = await http.post("/v1/jobs", content=b" " * ((1 << 20) + 1))
    chunked = await http.post("/v1/jobs", content=chunks(), headers={"content-type": "application/json"})
    for response in (declared, chunked):
        assert (response.status_code, response.json()["code"]) == (413, "too_large")


async def test_an_upload_over_its_limit_is_413(
    make_app: Callable[[ApiConfig], FastAPI], worker: HandWorker, http: httpx.AsyncClient
) -> None:
    await http.post("/v1/jobs", json=CAT)
    [lease] = await worker.claim()
    transport = httpx.ASGITransport(make_app(ApiConfig(max_file_bytes=10)))
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as strict:
        response = await HandWorker(strict, worker.id).upload(lease, "a.png", b"x" * 11)
    assert (response.status_code, response.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
async def test_a_body_that_is_not_a_json_object_is_422(http: httpx.AsyncClient, content: bytes) -> None:
    response = await http.post("/v1/jobs", content=content, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (b"", "body: is empty; send JSON"),
        (b"{", "body: is not JSON: expecting property name enclosed in double quotes (line 1, column 2)"),
        (b'{"input":\n {"prompt" "a"}}', "body: is not JSON: expecting ':' delimiter (line 2, column 12)"),
        (b"[]", "body: must be a JSON object"),
        (b'{"input": "\xff"}', "body: is not UTF-8: invalid start byte at byte 11"),
        (b"[" * 10_000, "body: is nested too deeply"),
    ],
    ids=["empty", "cut", "broken", "list", "bytes", "deep"],
)
async def test_a_body_that_is_not_json_is_told_where(
    http: httpx.AsyncClient, content: bytes, detail: str
) -> None:
    response = await http.post("/v1/jobs", content=content, headers={"content-type": "application/json"})
    assert response.json()["detail"] == detail


@pytest.mark.parametrize(
    ("content_type", "told"),
    [
        (None, "the request has no Content-Type"),
        (
            "application/x-www-form-urlencoded",
            "content type 'application/x-www-form-urlencoded' is not read here",
        ),
    ],
)
async def test_a_body_that_is_not_sent_as_json_is_told_how_to_send_it(
    http: httpx.AsyncClient, content_type: str | None, told: str
) -> None:
    headers = {"content-type": content_type} if content_type else {}
    response = await http.post("/v1/jobs", content=b"{}", headers=headers)
    remedy = "send Content-Type: application/json (curl: -H 'content-type: application/json')"
    assert (response.status_code, response.json()["detail"]) == (415, f"{told}; {remedy}")


async def test_a_wrong_value_is_told_with_its_field_and_its_remedy(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/jobs", json={"input": {"prompt": "a", "width": 0, "steps": 4}})
    assert response.json()["detail"] == (
        "input.width=0: must be in 1…65536; "
        "input.steps: is not a field of this request; did you mean num_inference_steps?"
    )


async def test_head_has_the_headers_of_get_and_no_body(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job = (await http.post("/v1/jobs", json=CAT)).json()
    [lease] = await worker.claim()
    await worker.complete(lease)
    done = (await http.get(job["urls"]["self"])).json()
    paths = ("/healthz", "/v1/jobs", "/v1/models", "/metrics", "/docs", job["urls"]["result"])
    for path in (*paths, done["result"]["artifacts"][0]["url"], "/v1/jobs/nix"):
        got, head = await http.get(path), await http.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        assert head.headers["content-type"] == got.headers["content-type"], path
        if path != "/metrics":  # it counts these requests
            assert int(head.headers["content-length"]) == len(got.content), path
    counted = 'diffusion_http_request_duration_seconds_count{method="HEAD",route="/healthz",status="200"} 1.0'
    assert counted in (await http.get("/metrics")).text


async def test_head_of_a_stream_of_events_ends_at_once(
    http: httpx.AsyncClient, server: str, worker: HandWorker
) -> None:
    job = (await http.post("/v1/jobs", json=CAT)).json()
    async with asyncio.timeout(HANG_SECONDS), httpx.AsyncClient(base_url=server) as web:
        for _ in range(2):
            response = await web.head(f"/v1/jobs/{job['id']}/events")
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.content == b""


async def test_unknown_paths_and_methods_are_problems_too(http: httpx.AsyncClient) -> None:
    nowhere, wrong = await http.get("/nowhere"), await http.put("/v1/jobs")
    assert "/nowhere" in nowhere.json()["detail"]
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/jobs", ["GET", "POST"]),
        ("PATCH", "/v1/files", ["GET", "POST"]),
        ("PUT", "/v1/files/file_1", ["DELETE", "GET"]),
        ("DELETE", "/readyz", ["GET"]),
    ],
)
async def test_a_wrong_method_is_told_every_right_one(
    http: httpx.AsyncClient, method: str, path: str, allowed: list[str]
) -> None:
    wrong = await http.request(method, path)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, ", ".join(allowed))
    assert wrong.json()["detail"].endswith(f"it takes {', '.join(allowed)}")


async def test_an_unavailable_database_is_503(
    http: httpx.AsyncClient, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object) -> Any:
        raise ServerUnavailable("the database does not response", retry_after=3)

    monkeypatch.setattr(store.jobs, "get", unavailable)
    response = await http.get("/v1/jobs/job_1")
    assert (response.status_code, response.json()["code"]) == (503, "server_unavailable")
    assert response.headers["retry-after"] == "3"
    assert response.json()["retryable"] is True
    assert (await http.get("/healthz")).status_code == 200


async def test_an_uncaught_exception_reveals_only_the_request_id(
    http: httpx.AsyncClient,
    store: JobStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(*_: object) -> Any:
        raise KeyError("secret")

    monkeypatch.setattr(store.jobs, "get", broken)
    response = await http.get("/v1/jobs/job_1")
    problem = response.json()
    assert (response.status_code, problem["code"]) == (500, "internal_error")
    assert "secret" not in response.text
    assert problem["request_id"] == response.headers["x-request-id"]
    assert problem["request_id"] in caplog.text
    assert "KeyError" in caplog.text


async def until_ready_is(http: httpx.AsyncClient, status: int) -> None:
    async def is_so() -> bool:
        return (await http.get("/readyz")).status_code == status

    await eventually(is_so)


async def test_readers_without_a_key_share_a_look_at_the_workers(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, read = [], store.operations.workers

    async def counted() -> Sequence[Worker]:
        looks.append(1)
        return await read()

    monkeypatch.setattr(store.operations, "workers", counted)
    await asyncio.gather(*(http.get(path) for path in ("/readyz", "/") for _ in range(50)))
    assert len(looks) < 50, "a look a second"


async def test_the_server_is_ready_while_a_worker_takes_jobs(http: httpx.AsyncClient) -> None:
    before = await http.get("/readyz")
    assert (before.status_code, before.json()["code"]) == (503, "server_unavailable")
    assert "no worker has registered" in before.json()["detail"]
    worker = await HandWorker.register(http)
    for state, status in (("initializing", 503), ("ready", 200), ("occupied", 200), ("draining", 503)):
        await worker.beat(state)
        await until_ready_is(http, status)
        assert (await http.get("/healthz")).status_code == 200


async def test_a_server_whose_worker_loads_its_model_says_how_far_it_is(http: httpx.AsyncClient) -> None:
    worker = await HandWorker.register(http)
    await worker.beat("initializing", loading={"phase": "weights", "bytes_read": 1, "bytes_total": 4})
    not_ready = await http.get("/readyz")
    assert not_ready.status_code == 503
    assert "loading the model" in not_ready.json()["detail"]
    assert "25%" in not_ready.json()["detail"]


async def test_metrics_count_what_happened(http: httpx.AsyncClient, worker: HandWorker) -> None:
    for _ in range(4):
        await http.post("/v1/jobs", json=CAT)
    first, second = await worker.claim(num_jobs=2)
    await worker.complete(first)
    await worker.fail(second)
    last = (await http.get("/v1/jobs")).json()["data"][0]
    await http.post(last["urls"]["cancel"])
    lines = set((await http.get("/metrics")).text.splitlines())
    assert {
        'diffusion_requests_total{model="hand",status="succeeded"} 1.0',
        'diffusion_requests_total{model="hand",status="failed"} 1.0',
        'diffusion_requests_total{model="hand",status="canceled"} 1.0',
        'diffusion_generation_duration_seconds_count{model="hand",steps="4"} 1.0',
        'diffusion_queue_size{band="standard",pool="hand"} 1.0',
        'diffusion_job_duration_seconds_count{status="failed"} 1.0',
        "diffusion_leases 0.0",
        'diffusion_leases_granted_total{pool="hand"} 2.0',
        'diffusion_workers{kind="on_demand",state="ready"} 1.0',
        "diffusion_claim_seconds_count 1.0",
        "diffusion_job_queue_seconds_count 2.0",
        "diffusion_job_run_seconds_count 2.0",
        'diffusion_http_request_duration_seconds_count{method="POST",route="/v1/jobs",status="202"} 4.0',
    } <= lines


async def test_expired_jobs_are_counted(http: httpx.AsyncClient, store: JobStore, worker: HandWorker) -> None:
    await http.post("/v1/jobs", json=CAT | {"expires_in": 1})
    await asyncio.sleep(1.1)
    await store.housekeeping.reap("only replica")
    counted = 'diffusion_requests_total{model="hand",status="expired"} 1.0'
    assert counted in (await http.get("/metrics")).text.splitlines()


async def test_metrics_never_name_a_job_or_a_tenant(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job = (await http.post("/v1/jobs", json=CAT)).json()
    await http.get(job["urls"]["self"])
    await http.get("/some/free/text")
    await http.post("/v1/jobs", json=CAT | {"model": "free-text"})
    text = (await http.get("/metrics")).text
    assert job["id"] not in text
    assert "free" not in text
    names = set(re.findall(r'(\w+)="', text))
    about_jobs = {"status", "model", "pool", "band", "steps", "outcome", "cause", "phase"}
    assert names <= about_jobs | {"state", "kind", "method", "route", "le"}


async def test_a_model_says_whether_it_is_ready(http: httpx.AsyncClient) -> None:
    async def has_status(status: str) -> bool:
        [model] = (await http.get("/v1/models")).json()["data"]
        return bool(model["status"] == status)

    worker = await HandWorker.register(http)
    for state, expected in (("initializing", "loading"), ("occupied", "ready"), ("draining", "unavailable")):
        await worker.beat(state)
        await eventually(partial(has_status, expected))
