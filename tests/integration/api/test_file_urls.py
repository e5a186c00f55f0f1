"""URLs of results: signed for a while, or below the public base URL for good."""

from collections.abc import Callable

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.auth.signatures import Signatures
from diffuserve.api.config import ApiConfig
from diffuserve.api.files.signing import UrlSigner
from diffuserve.api.files.urls import FileUrls
from diffuserve.jobs.store import JobStore
from diffuserve.storage.local import LocalArtifactStore
from support.hand_worker import PNG, HandWorker

CAT = {"model": "hand", "input": {"prompt": "a cat"}}


async def result_url(http: httpx.AsyncClient, worker: HandWorker) -> tuple[str, str]:
    """Run a job, and return its id and its image's URL."""
    job_id = (await http.post("/v1/jobs", json=CAT)).json()["id"]
    (lease,) = await worker.claim()
    assert (await worker.complete(lease)).status_code == 200
    job = (await http.get(f"/v1/jobs/{job_id}")).json()
    return job_id, job["result"]["artifacts"][0]["url"]


@pytest.mark.parametrize("base", ["https://cdn.test/images", "https://cdn.test/images/"])
async def test_results_below_a_public_base_url_have_plain_urls(
    make_app: Callable[[ApiConfig], FastAPI], base: str
) -> None:
    app = make_app(ApiConfig(public_base_url=base, public_api_url="https://api.test"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://inside") as http:
        job_id, url = await result_url(http, await HandWorker.register(http))
        assert url == f"https://cdn.test/images/{job_id}/1/0.png"
        response = await http.get(f"/v1/jobs/{job_id}/result")
        assert (response.status_code, response.headers["location"]) == (307, url)
        job = await http.get(f"/v1/jobs/{job_id}")
        assert job.json()["urls"]["self"] == f"https://api.test/v1/jobs/{job_id}", "the API has its own URL"


async def test_the_api_signs_urls_without_a_public_base_url(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    job_id, url = await result_url(http, worker)
    assert url.startswith(f"http://api.test/files/{job_id}/1/0.png?expires=")
    assert (await http.get(url)).content == PNG
    assert (await http.get(f"/v1/jobs/{job_id}/result")).content == PNG


def urls(artifacts: LocalArtifactStore, store: JobStore, public_base_url: str | None = None) -> FileUrls:
    return FileUrls(artifacts, UrlSigner(Signatures(store), valid_seconds=100.0), public_base_url)


async def test_a_key_is_quoted_in_a_public_url(artifacts: LocalArtifactStore, store: JobStore) -> None:
    found = await urls(artifacts, store, "https://cdn.test").url("job", 1, "a b#1.png", "http://api.test")
    assert found == "https://cdn.test/job/1/a%20b%231.png"


def test_the_tag_changes_before_signed_urls_expire(
    artifacts: LocalArtifactStore, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed, public = urls(artifacts, store), urls(artifacts, store, "https://cdn.test")
    tags: list[tuple[str, str]] = []
    for seconds in (0.0, 49.0, 51.0, 99.0, 101.0):
        monkeypatch.setattr("time.time", lambda now=seconds: 1_000_000.0 + now)
        tags.append((signed.tag(), public.tag()))
    first, second, third = ("20000", "20001", "20002")
    assert [tag for tag, _ in tags] == [first, first, second, second, third]
    assert len({tag for _, tag in tags}) == 1, "public URLs hold for good"
    assert urls(artifacts, store, "https://other.test").tag() != public.tag(), "until the base URL changes"
