"""Text that no database can store is refused at the door, wherever a client or a worker may send text."""

import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.storage.local import LocalArtifactStore
from support.hand_worker import HAND_SPEC, HandWorker

NULL, SURROGATE = "a\0b", "a\ud800b"
JSONL = {"content-type": "application/jsonl"}
REPORT = {"state": "ready"}
Request = tuple[str, str, dict[str, Any]]


@pytest.fixture
async def http(database_url: str, bus: MemoryEventBus, tmp_path: Path) -> AsyncGenerator[httpx.AsyncClient]:
    store = JobStore(database_url, bus, StoreConfig())
    await store.open()
    app = create_app(store, LocalArtifactStore(tmp_path / "files"), bus, ApiConfig())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as http:
        yield http
    await store.close()


def job(**values: Any) -> dict[str, Any]:
    return {"input": {"prompt": "a cat"}} | values


def item(**values: Any) -> dict[str, Any]:
    return job(custom_id="one") | values


def of_jobs(text: str) -> list[Any]:
    return [
        job(input={"prompt": text}),
        job(input={"prompt": "a cat", "negative_prompt": text}),
        job(model=text),
        job(metadata={"order": text}),
        job(metadata={text: 1}),
        job(metadata={"deep": [{"order": text}]}),
        job(webhook={"url": f"https://hooks.example/{text}"}),
    ]


def of_batches(text: str) -> list[Any]:
    items = [
        item(custom_id=text),
        item(input={"prompt": text}),
        item(metadata={text: text}),
    ]
    options: list[dict[str, Any]] = [
        {"model": text},
        {"metadata": {"a": text}},
        {"webhook": {"url": f"https://hooks.example/{text}"}},
    ]
    return [{"items": [invalid]} for invalid in items] + [{"items": [item()]} | option for option in options]


def of_workers(text: str, worker: HandWorker, lease: Any) -> list[tuple[str, Any]]:
    offers = [{"spec": asdict(HAND_SPEC)}]
    registration = {"models": offers, "report": REPORT}
    held = {"job_id": text, "lease_token": 1}
    files = f"/v1/leases/{lease.job_id}"
    failure = {"code": "broken", "message": text, "retryable": False}
    artifact = {"name": text, "content_type": "image/png", "size_bytes": 1, "sha256": "0"}
    return [
        ("/v1/workers", registration | {"name": text}),
        ("/v1/workers", registration | {"labels": {"zone": text}}),
        ("/v1/workers", registration | {"models": [{"spec": asdict(HAND_SPEC) | {"name": text}}]}),
        ("/v1/workers", registration | {"report": REPORT | {"resident_models": [text]}}),
        (f"/v1/workers/{worker.id}/claim", {"claim_id": text, "num_jobs": 1}),
        (f"/v1/workers/{worker.id}/claim", {"claim_id": "c", "num_jobs": 1, "models": [text]}),
        (f"/v1/workers/{worker.id}/heartbeat", {"report": REPORT, "held": [held]}),
        (f"{files}/fail", {"lease_token": lease.lease_token, "error": failure}),
        (
            f"{files}/complete",
            {"lease_token": lease.lease_token, "actual_seconds": 1.0, "result": {"artifacts": [artifact]}},
        ),
    ]


def requests_with(text: str) -> list[Request]:
    flat: list[Any] = [
        {"prompt": text},
        {"prompt": "a cat", "negative_prompt": text},
        {"prompt": "a", "model": text},
    ]
    images: list[Any] = [
        {"prompt": text},
        {"prompt": "a cat", "user": text},
        {"prompt": "a cat", "model": text},
    ]
    bodies = [("/v1/jobs", body) for body in of_jobs(text)]
    bodies += [("/v1/batches", body) for body in of_batches(text)]
    bodies += [("/generate", body) for body in flat] + [("/v1/images/generations", body) for body in images]
    lines = [("/v1/batches", body) for body in (item(custom_id=text), item(input={"prompt": text}))]
    return [request(path, body) for path, body in bodies] + [
        request(path, body, JSONL) for path, body in lines
    ]


def request(path: str, body: Any, headers: Any = None) -> Request:
    """Write the body with escapes, as Python's own encoder does: JSON can name what UTF-8 cannot hold."""
    content = json.dumps(body).encode()
    return "POST", path, {"content": content, "headers": headers or {"content-type": "application/json"}}


def in_the_url(_text: str) -> list[Request]:
    line = json.dumps(item()).encode()
    return [
        ("POST", f"/v1/batches?{name}=a%00b", {"content": line, "headers": JSONL})
        for name in ("model", "webhook_url")
    ] + [
        ("GET", path, {})
        for path in (
            "/v1/jobs?after=a%00b",
            "/v1/batches?after=a%00b",
            "/v1/jobs/a%00b",
            "/v1/webhooks/a%00b/deliveries",
        )
    ]


def in_a_header(text: str) -> list[Request]:
    key = {"idempotency-key": text}
    return [
        ("POST", "/v1/jobs", {"json": job(), "headers": key}),
        ("POST", "/v1/batches", {"json": {"items": [item()]}, "headers": key}),
    ]


@pytest.mark.parametrize(
    ("requests", "text"),
    [(requests_with, NULL), (requests_with, SURROGATE), (in_the_url, NULL), (in_a_header, NULL)],
    ids=["null", "surrogate", "url", "header"],
)
async def test_what_a_client_sends(
    http: httpx.AsyncClient, requests: Callable[[str], list[Request]], text: str
) -> None:
    await HandWorker.register(http)
    for method, path, options in requests(text):
        response = await http.request(method, path, **options)
        assert 400 <= response.status_code < 500, f"{path} {options}: {response.status_code}"
        assert response.json().get("code", "openai") not in ("internal_error", "queue_full")
    assert (await http.get("/v1/jobs")).json()["data"] == []


@pytest.mark.parametrize("text", [NULL, SURROGATE], ids=["null", "surrogate"])
async def test_what_a_worker_sends(http: httpx.AsyncClient, text: str) -> None:
    worker = await HandWorker.register(http)
    await http.post("/v1/jobs", json=job())
    [lease] = await worker.claim()
    for path, body in of_workers(text, worker, lease):
        method, path, options = request(path, body)
        response = await http.request(method, path, **options)
        assert response.status_code == 422, f"{path} {body}: {response.status_code} {response.text}"
    assert (await http.get(f"/v1/jobs/{lease.job_id}")).json()["status"] == "running"


async def test_the_refusal_names_the_field(http: httpx.AsyncClient) -> None:
    await HandWorker.register(http)
    response = await http.post("/v1/batches", json={"items": [item(custom_id=NULL)]})
    [error] = response.json()["errors"]
    assert error == {"field": "items.0.custom_id", "message": "must not contain the character U+0000"}


async def test_the_text_of_an_escape_is_no_null_character(http: httpx.AsyncClient) -> None:
    await HandWorker.register(http)
    literal = "\\u0000 is an escape, \\\\u0000 is one too"
    response = await http.post("/v1/jobs", json=job(metadata={"note": literal}))
    assert response.status_code == 202
    assert response.json()["metadata"] == {"note": literal}
