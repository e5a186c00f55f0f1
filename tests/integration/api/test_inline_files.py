"""Files that a worker sends with the completion of a job, in place of an upload of each."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from diffuserve.domain.workers.worker import Lease
from support.hand_worker import PNG, HandWorker
from support.uploading import stored

CAT = {"input": {"prompt": "a cat"}}
ARTIFACT = {
    "name": "0.png",
    "content_type": "image/png",
    "size_bytes": len(PNG),
    "sha256": hashlib.sha256(PNG).hexdigest(),
    "width": 1,
    "height": 1,
}
CONTENTS = {"0.png": base64.b64encode(PNG).decode()}


@pytest.fixture
async def lease(http: httpx.AsyncClient, worker: HandWorker) -> Lease:
    await http.post("/v1/jobs", json=CAT)
    [lease] = await worker.claim()
    return lease


async def test_the_result_has_the_files_that_were_sent_along(
    http: httpx.AsyncClient, worker: HandWorker, lease: Lease
) -> None:
    response = await worker.finish(lease, [ARTIFACT], CONTENTS)
    assert (response.status_code, response.json()["status"]) == (200, "succeeded")
    image = await http.get(f"/v1/jobs/{lease.job_id}/result")
    assert (image.content, image.headers["content-type"]) == (PNG, "image/png")
    assert (await worker.finish(lease, [ARTIFACT], CONTENTS)).json() == response.json()


async def test_some_files_may_be_uploaded_and_others_sent_along(worker: HandWorker, lease: Lease) -> None:
    uploaded = await worker.generate(lease, 1)
    assert (await worker.finish(lease, [ARTIFACT, uploaded])).json()["code"] == "upload_missing"
    assert (await worker.finish(lease, [ARTIFACT, uploaded], CONTENTS)).json()["status"] == "succeeded"


async def test_a_stale_token_stores_no_file(
    http: httpx.AsyncClient, worker: HandWorker, lease: Lease, tmp_path: Path
) -> None:
    await worker.release(lease)
    [newer] = await worker.claim()
    response = await worker.finish(lease, [ARTIFACT], CONTENTS)
    assert (response.status_code, response.json()["code"]) == (409, "lease_lost")
    assert stored(tmp_path) == []
    assert (await http.get(f"/v1/jobs/{lease.job_id}")).json()["status"] == "running"
    assert (await worker.finish(newer, [ARTIFACT], CONTENTS)).json()["status"] == "succeeded"


@pytest.mark.parametrize("changed", [{"size_bytes": 1}, {"sha256": "0" * 64}])
async def test_a_damaged_file_is_missing(
    worker: HandWorker, lease: Lease, tmp_path: Path, changed: dict[str, Any]
) -> None:
    response = await worker.finish(lease, [ARTIFACT | changed], CONTENTS)
    assert (response.status_code, response.json()["code"]) == (409, "upload_missing")
    assert stored(tmp_path) == []
    assert (await worker.finish(lease, [ARTIFACT], CONTENTS)).json()["status"] == "succeeded"


@pytest.mark.parametrize(
    ("contents", "field"),
    [({"0.png": "no base64"}, "contents.0.png"), ({"../1.png": ""}, "contents.../1.png")],
)
async def test_only_files_of_the_result_are_stored(
    worker: HandWorker, lease: Lease, tmp_path: Path, contents: dict[str, str], field: str
) -> None:
    response = await worker.finish(lease, [ARTIFACT], contents)
    assert response.status_code == 422
    assert field in response.text
    assert stored(tmp_path) == []


async def test_a_server_that_stores_files_says_how_much_may_be_sent_along(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/workers", json={"models": [], "report": {"state": "initializing"}})
    assert response.json()["max_inline_bytes"] == 512 * 1024
