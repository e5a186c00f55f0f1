"""Rotation of the secret that signs URLs, while several applications run."""

import time
from collections.abc import AsyncGenerator, Callable

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.jobs.store import JobStore
from support.hand_worker import PNG, HandWorker

CAT = {"model": "hand", "input": {"prompt": "a cat"}}


@pytest.fixture
async def other_http(make_app: Callable[[ApiConfig], FastAPI]) -> AsyncGenerator[httpx.AsyncClient]:
    """Call a second application over the same store, which caches secrets of its own."""
    transport = httpx.ASGITransport(make_app(ApiConfig()))
    async with httpx.AsyncClient(transport=transport, base_url="http://other.test") as http:
        yield http


@pytest.fixture
async def job_id(http: httpx.AsyncClient, worker: HandWorker) -> str:
    found: str = (await http.post("/v1/jobs", json=CAT)).json()["id"]
    (lease,) = await worker.claim()
    await worker.complete(lease)
    return found


async def url_of(http: httpx.AsyncClient, job_id: str) -> str:
    url: str = (await http.get(f"/v1/jobs/{job_id}")).json()["result"]["artifacts"][0]["url"]
    return url.partition(".test")[2]


@pytest.fixture
def pass_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let seconds pass for the caches of secrets."""
    real, passed = time.monotonic, 0.0

    def advance(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    monkeypatch.setattr("diffuserve.api.auth.signatures.monotonic", lambda: real() + passed)
    return advance


async def test_old_urls_stay_valid_for_the_overlap_and_new_ones_have_the_new_secret(
    http: httpx.AsyncClient, store: JobStore, job_id: str, pass_by: Callable[[float], None]
) -> None:
    old = await url_of(http, job_id)
    await store.url_secrets.rotate(3_600.0)
    pass_by(5.0)
    new = await url_of(http, job_id)
    assert old.partition("signature=")[2] != new.partition("signature=")[2]
    assert [(await http.get(url)).content for url in (old, new)] == [PNG, PNG]
    await store.url_secrets.rotate(0.0)
    pass_by(5.0)
    assert [(await http.get(url)).status_code for url in (old, new)] == [403, 403]


async def test_a_server_accepts_a_secret_of_which_another_learned_first(
    http: httpx.AsyncClient,
    other_http: httpx.AsyncClient,
    store: JobStore,
    job_id: str,
    pass_by: Callable[[float], None],
) -> None:
    assert (await other_http.get(await url_of(http, job_id))).content == PNG, "both have cached the secret"
    await store.url_secrets.rotate(3_600.0)
    pass_by(5.0)
    new = await url_of(http, job_id)
    pass_by(-4.0)  # the other one's cache is a second old
    assert (await other_http.get(new)).content == PNG


async def test_files_are_served_while_the_secrets_cannot_be_read(
    http: httpx.AsyncClient,
    store: JobStore,
    job_id: str,
    pass_by: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = await url_of(http, job_id)

    async def fail() -> list[bytes]:
        raise ServerUnavailable("the database is unavailable")

    monkeypatch.setattr(store.url_secrets, "valid", fail)
    pass_by(5.0)
    assert (await http.get(url)).content == PNG


async def test_invalid_signatures_cause_few_reads(
    http: httpx.AsyncClient, store: JobStore, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = (await url_of(http, job_id)).partition("signature=")[0] + "signature=forged"
    num_reads = 0
    read = store.url_secrets.valid

    async def count() -> list[bytes]:
        nonlocal num_reads
        num_reads += 1
        return await read()

    monkeypatch.setattr(store.url_secrets, "valid", count)
    monkeypatch.setattr("diffuserve.api.auth.signatures.monotonic", lambda: 1_000_000.0)
    for _ in range(20):
        assert (await http.get(forged)).status_code == 403
    assert num_reads == 1
