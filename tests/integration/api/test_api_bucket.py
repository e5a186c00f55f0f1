"""The API over a bucket, from which clients fetch images, and which may be unavailable."""

import dataclasses
import hashlib
from collections.abc import Callable

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.client.http import HttpTransport
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.workers.worker import Lease, ModelOffer, Registration, WorkerReport, WorkerState
from diffuserve.storage.base import ArtifactStore
from support.hand_worker import HAND_SPEC, PNG, HandWorker
from support.image_files import image_in, png
from support.s3 import S3Server, bucket_at

CAT = {"input": {"prompt": "a cat"}}
SHA256 = hashlib.sha256(PNG).hexdigest()


@pytest.fixture
def artifacts(request: pytest.FixtureRequest, s3: S3Server, bucket: str) -> ArtifactStore:
    if request.node.get_closest_marker("parametrize"):
        return bucket_at("http://127.0.0.1:9", "unavailable")
    return s3.store(bucket, "results")


async def finished(http: httpx.AsyncClient, worker: HandWorker) -> dict[str, object]:
    job = (await http.post("/v1/jobs", json=CAT)).json()
    (lease,) = await worker.claim()
    assert (await worker.complete(lease)).status_code == 200
    found: dict[str, object] = (await http.get(job["urls"]["self"])).json()
    return found


async def test_the_url_of_an_image_is_signed_by_the_bucket(
    http: httpx.AsyncClient, worker: HandWorker, s3: S3Server
) -> None:
    job = await finished(http, worker)
    url = job["result"]["artifacts"][0]["url"]  # type: ignore[index]
    assert url.startswith(s3.url)
    async with httpx.AsyncClient() as anonymous:
        response = await anonymous.get(url)
    assert (response.content, response.headers["content-type"]) == (PNG, "image/png")


async def test_the_result_route_redirects_to_the_bucket(
    http: httpx.AsyncClient, worker: HandWorker, s3: S3Server
) -> None:
    job = await finished(http, worker)
    response = await http.get(f"/v1/jobs/{job['id']}/result")
    assert response.status_code == 307
    assert response.headers["location"].startswith(s3.url)


async def test_an_uploaded_image_is_in_the_bucket(http: httpx.AsyncClient, s3: S3Server, bucket: str) -> None:
    uploaded = await http.post("/v1/files", files={"file": ("a.png", png())})
    file = uploaded.raise_for_status().json()
    redirect = await http.get(f"/v1/files/{file['id']}/content")
    assert (redirect.status_code, redirect.headers["location"].startswith(s3.url)) == (307, True)
    async with httpx.AsyncClient() as anonymous:
        content = (await anonymous.get(redirect.headers["location"])).content
    assert (len(content), image_in(content).size) == (file["bytes"], (64, 48))
    assert (await http.delete(f"/v1/files/{file['id']}")).status_code == 200
    assert s3.client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


async def test_a_cdn_in_front_of_the_prefix_serves_the_public_urls(
    make_app: Callable[[ApiConfig], FastAPI], s3: S3Server, bucket: str
) -> None:
    """Fetch from the bucket itself, which stands in for the CDN."""
    app = make_app(ApiConfig(public_base_url=f"{s3.url}/{bucket}/results"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.test") as http:
        job = await finished(http, await HandWorker.register(http))
    url = job["result"]["artifacts"][0]["url"]  # type: ignore[index]
    assert url == f"{s3.url}/{bucket}/results/{job['id']}/1/0.png"
    s3.client.put_object_acl(Bucket=bucket, Key=f"results/{job['id']}/1/0.png", ACL="public-read")
    async with httpx.AsyncClient() as anonymous:
        response = await anonymous.get(url)
    assert (response.content, response.headers["content-type"]) == (PNG, "image/png")


async def test_a_job_is_completed_only_with_files_that_the_bucket_holds(
    http: httpx.AsyncClient, worker: HandWorker, artifacts: ArtifactStore
) -> None:
    job = (await http.post("/v1/jobs", json=CAT)).json()
    (lease,) = await worker.claim()
    file = {"name": "0.png", "size_bytes": len(PNG), "sha256": SHA256, "content_type": "image/png"}
    image = file | {"width": 1, "height": 1, "index": 0, "seed": 0}
    await expect_missing(worker, lease, image, "0.png is not stored")
    await worker.upload(lease, "0.png", PNG[:-1])
    await expect_missing(worker, lease, image, f"0.png has {len(PNG) - 1} bytes instead of {len(PNG)}")
    await worker.upload(lease, "0.png")
    assert (await worker.finish(lease, [image])).status_code == 200

    await artifacts.delete(job["id"])
    assert (await worker.finish(lease, [image])).status_code == 200, "a repeated completion changes nothing"
    stale = dataclasses.replace(lease, lease_token=9)
    assert (await worker.finish(stale, [image])).json()["code"] == "lease_lost"


async def expect_missing(worker: HandWorker, lease: Lease, image: dict[str, object], reason: str) -> None:
    response = await worker.finish(lease, [image])
    assert (response.status_code, response.json()["code"]) == (409, "upload_missing")
    assert response.json()["detail"].startswith(reason)


async def test_inline_images_are_read_from_the_bucket(
    http: httpx.AsyncClient, busy_worker: HandWorker
) -> None:
    response = await http.post("/v1/images/generations", json={"prompt": "a cat"})
    assert response.status_code == 200
    assert response.json()["data"][0]["b64_json"]


async def test_deleting_a_job_deletes_its_files_in_the_bucket(
    http: httpx.AsyncClient, worker: HandWorker, artifacts: ArtifactStore
) -> None:
    job = await finished(http, worker)
    assert await artifacts.attempts(-10) == [(job["id"], 1)]
    await http.delete(f"/v1/jobs/{job['id']}")
    assert await artifacts.attempts(-10) == []


@pytest.mark.parametrize("state", ["unavailable"])
async def test_an_upload_to_an_unavailable_bucket_is_retryable(
    http: httpx.AsyncClient, worker: HandWorker, state: str
) -> None:
    await http.post("/v1/jobs", json=CAT)
    (lease,) = await worker.claim()
    response = await worker.upload(lease, "0.png")
    assert (response.status_code, response.json()["retryable"]) == (503, True)
    image = {"name": "0.png", "size_bytes": 1, "sha256": SHA256, "content_type": "image/png"}
    response = await worker.finish(lease, [image | {"width": 1, "height": 1, "index": 0}])
    assert (response.status_code, response.json()["retryable"]) == (503, True), "the file may be stored"


async def test_a_worker_uploads_directly_to_the_bucket(
    server: str, http: httpx.AsyncClient, worker: HandWorker, artifacts: ArtifactStore
) -> None:
    await http.post("/v1/jobs", json=CAT)
    (lease,) = await worker.claim()
    client = LeaseClient(HttpTransport(server))
    offers = (ModelOffer(spec=HAND_SPEC),)
    await client.register(Registration(models=offers, report=WorkerReport(state=WorkerState.READY)))
    stored = await client.upload(lease.job_id, lease.lease_token, "0.png", lambda: PNG)
    await client.close()
    key = f"{lease.job_id}/{lease.lease_token}/0.png"
    assert b"".join([chunk async for chunk in artifacts.read(key)]) == PNG
    assert stored.size_bytes == len(PNG)
    metrics = (await http.get("/metrics")).text
    assert "files/{name}/upload-url" in metrics
    assert 'route="/v1/leases/{job_id}/files/{name}"' not in metrics, "the file bypassed the control plane"
