"""The page and its files as a browser gets them: paths, policy, caching, size."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import ArtifactStore
from diffuserve.storage.local import LocalArtifactStore
from diffuserve.web.assets import load_assets
from support.s3 import S3Server

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
MAX_BYTES = 150_000
MakeApp = Callable[[ApiConfig], FastAPI]


def linked(page: str) -> list[str]:
    """Return what a page loads before any script runs."""
    return re.findall(r'(?:href|src)="(web/[^"]+)"', page)


@pytest.mark.parametrize("path", ["/", "/gallery", "/gallery/job_1", "/ops"])
async def test_each_view_has_a_path_and_what_it_needs_first(http: httpx.AsyncClient, path: str) -> None:
    page = await http.get(path, headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-store"
    policy = page.headers["content-security-policy"]
    assert "default-src 'self';" in policy
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
    assert "unsafe" not in policy
    assert "<style" not in page.text
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=", page.text)
    for link in linked(page.text):
        assert (await http.get(f"/{link}")).status_code == 200, link


async def test_the_first_load_is_small(http: httpx.AsyncClient) -> None:
    page = await http.get("/", headers=BROWSER)
    links = set(linked(page.text))
    num_bytes = len(gzip.compress(page.content))
    for link in links:
        async with http.stream("GET", f"/{link}", headers={"accept-encoding": "gzip"}) as response:
            assert response.headers["content-encoding"] == "gzip"
            num_bytes += sum([len(part) async for part in response.aiter_raw()])
    print(f"first load: {num_bytes:,} bytes in {len(links) + 1} responses")
    assert num_bytes <= MAX_BYTES


def test_all_that_the_first_view_imports_is_announced() -> None:
    assets = load_assets()
    modules = assets.modules("main.js", "views/playground.js")
    assert {"vendor/ui.js", "api.js", "components/frame.js"} <= set(modules)
    assert "vendor/charts.js" not in modules, "charts are for operators, and the largest module"


async def test_files_are_kept_for_good_under_the_version_that_they_have(http: httpx.AsyncClient) -> None:
    assets = load_assets()
    path = f"/web/{assets.version}/main.js"
    first = await http.get(path)
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in first.headers["cache-control"]
    assert first.headers["x-content-type-options"] == "nosniff"
    assert first.headers["vary"] == "accept-encoding"
    again = await http.get(path, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    plain = await http.get(path, headers={"accept-encoding": "gzip;q=0"})
    assert "content-encoding" not in plain.headers
    assert plain.content == first.content
    assert (await http.head(path)).headers["etag"] == first.headers["etag"]


@pytest.mark.parametrize(
    "path", ["0123456789ab/main.js", "{version}/nothing.js", "{version}/%2e%2e/pages.py"]
)
async def test_files_of_another_version_are_none(http: httpx.AsyncClient, path: str) -> None:
    response = await http.get("/web/" + path.format(version=load_assets().version))
    assert response.status_code == 404
    assert "immutable" not in response.headers.get("cache-control", "")


async def test_a_proxy_may_put_the_page_below_a_path(app: FastAPI) -> None:
    transport = httpx.ASGITransport(app, root_path='/pictures"')
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        page = (await http.get('/pictures"/', headers=BROWSER)).text
    assert '<base href="/pictures&quot;/">' in page


async def test_a_person_who_is_lost_gets_the_page_and_a_program_a_problem(http: httpx.AsyncClient) -> None:
    page = await http.get("/nothing", headers=BROWSER)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert (await http.get("/nothing")).json()["code"] == "not_found"
    assert (await http.get("/v1/nothing", headers=BROWSER)).json()["error"]["code"] == "not_found"
    assert (await http.post("/nothing", headers=BROWSER)).headers[
        "content-type"
    ] == "application/problem+json"


async def test_the_policy_names_where_images_are(
    store: JobStore, bus: MemoryEventBus, tmp_path: Path, s3: S3Server, bucket: str
) -> None:
    local = LocalArtifactStore(tmp_path / "files")
    public = ApiConfig(public_base_url="https://cdn.test/files", public_api_url="https://pictures.test/api")
    assert await sources(store, local, bus, ApiConfig()) == "img-src 'self' data: blob:"
    assert await sources(store, local, bus, public) == (
        "img-src 'self' data: blob: https://pictures.test https://cdn.test"
    )
    signed = await sources(store, s3.store(bucket, "results"), bus, ApiConfig())
    assert signed == f"img-src 'self' data: blob: {s3.url}"


async def sources(store: JobStore, artifacts: ArtifactStore, bus: MemoryEventBus, config: ApiConfig) -> str:
    """Return the policy's sources of images."""
    app = create_app(store, artifacts, bus, config)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        policy = (await http.get("/", headers=BROWSER)).headers["content-security-policy"]
    [images] = [part.strip() for part in policy.split(";") if part.strip().startswith("img-src")]
    return str(images)
