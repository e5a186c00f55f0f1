"""Files in parts: what a browser's `<video>` and downloads that continue ask for."""

import hashlib
from collections.abc import Mapping

import httpx
import pytest

from diffuserve.jobs.store import JobStore
from support.hand_worker import HandWorker
from support.image_files import png

CONTENT = bytes(range(256)) * 2_000
TAG = f'"{hashlib.sha256(CONTENT).hexdigest()}"'
OTHER_TAG = f'"{"0" * 64}"'


@pytest.fixture
async def job(http: httpx.AsyncClient, worker: HandWorker) -> dict[str, str]:
    """Finish a job with one file, and return its id and the file's URLs."""
    job_id = (await http.post("/v1/jobs", json={"input": {"prompt": "a cat"}})).json()["id"]
    (lease,) = await worker.claim()
    stored = (await worker.upload(lease, "0.mp4", CONTENT)).json()
    shape = {"content_type": "video/mp4", "width": 1, "height": 1, "index": 0, "seed": 0}
    assert (await worker.finish(lease, [stored | shape])).status_code == 200
    found = (await http.get(f"/v1/jobs/{job_id}")).json()
    url = found["result"]["artifacts"][0]["url"]
    return {"id": job_id, "signed": url, "result": f"/v1/jobs/{job_id}/result"}


@pytest.fixture(params=["signed", "result"])
def url(request: pytest.FixtureRequest, job: dict[str, str]) -> str:
    return job[request.param]


async def test_a_whole_file_says_that_parts_of_it_may_be_fetched(
    http: httpx.AsyncClient, url: str, job: dict[str, str]
) -> None:
    response = await http.get(url)
    assert (response.status_code, response.content) == (200, CONTENT)
    wanted = {
        "accept-ranges": "bytes",
        "etag": TAG,
        "content-type": "video/mp4",
        "content-length": str(len(CONTENT)),
        "content-disposition": f'inline; filename="{job["id"]}-0.mp4"',
        "x-content-type-options": "nosniff",
    }
    assert response.headers.items() >= wanted.items()
    assert "content-range" not in response.headers
    head = await http.head(url)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers.items() >= wanted.items()


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-", 0, 512_000),
        ("bytes=-3", 511_997, 512_000),
        ("bytes=1000-2999", 1_000, 3_000),
        ("bytes=300000-999999", 300_000, 512_000),
    ],
)
async def test_a_part_is_sent(http: httpx.AsyncClient, url: str, asked: str, start: int, stop: int) -> None:
    response = await http.get(url, headers={"range": asked})
    assert (response.status_code, response.content) == (206, CONTENT[start:stop])
    assert response.headers["content-range"] == f"bytes {start}-{stop - 1}/512000"
    assert response.headers["content-length"] == str(stop - start)
    assert response.headers["etag"] == TAG


async def test_a_part_behind_the_end_is_refused_with_the_size(http: httpx.AsyncClient, url: str) -> None:
    response = await http.get(url, headers={"range": "bytes=512000-"})
    assert (response.status_code, response.json()["code"]) == (416, "range_not_satisfiable")
    assert response.headers["content-range"] == "bytes */512000"
    assert "512,000 bytes" in response.json()["detail"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"range": "bytes=0-1,5-6"}, 200),
        ({"range": "bytes=9-1"}, 200),
        ({"range": "lines=1-2"}, 200),
        ({"range": "bytes=0-9", "if-range": TAG}, 206),
        ({"range": "bytes=0-9", "if-range": OTHER_TAG}, 200),
        ({"range": "bytes=0-9", "if-range": f"W/{TAG}"}, 200),
        ({"range": "bytes=0-9", "if-range": "Wed, 21 Oct 2026 07:28:00 GMT"}, 200),
        ({"range": "bytes=999999-", "if-range": OTHER_TAG}, 200),
        ({"if-none-match": TAG}, 304),
        ({"if-none-match": f"{OTHER_TAG}, W/{TAG}"}, 304),
        ({"if-none-match": "*"}, 304),
        ({"if-none-match": TAG, "range": "bytes=0-9"}, 304),
        ({"if-none-match": OTHER_TAG}, 200),
    ],
    ids=str,
)
async def test_conditions_decide_what_is_sent(
    http: httpx.AsyncClient, url: str, headers: Mapping[str, str], status: int
) -> None:
    response = await http.get(url, headers=dict(headers))
    length = {200: len(CONTENT), 206: 10, 304: 0}[status]
    assert (response.status_code, len(response.content)) == (status, length)
    assert response.headers["etag"] == TAG


async def test_head_knows_no_ranges(http: httpx.AsyncClient, url: str) -> None:
    response = await http.head(url, headers={"range": "bytes=0-9"})
    assert (response.status_code, response.headers["content-length"]) == (200, str(len(CONTENT)))


async def test_the_tag_of_a_signed_url_is_signed_too(
    http: httpx.AsyncClient, job: dict[str, str], store: JobStore
) -> None:
    forged = job["signed"].replace(TAG.strip('"'), "0" * 64)
    assert (await http.get(forged)).status_code == 403
    without = job["signed"].partition("&sha256=")[0]
    assert (await http.get(without)).status_code == 403
    assert (await http.get(job["signed"] + "x")).status_code == 403


async def test_an_uploaded_image_is_sent_in_parts(http: httpx.AsyncClient) -> None:
    file = (await http.post("/v1/files", files={"file": ("a.png", png())})).json()
    url = f"/v1/files/{file['id']}/content"
    whole = await http.get(url)
    part = await http.get(url, headers={"range": "bytes=1-3", "if-range": whole.headers["etag"]})
    assert (part.status_code, part.content) == (206, b"PNG")
    assert whole.headers["etag"] == f'"{file["sha256"]}"'
    assert whole.headers["content-disposition"] == f'inline; filename="{file["id"]}.png"'
