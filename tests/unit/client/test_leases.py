"""Uploads to the control plane, or directly to a bucket."""

import asyncio
import base64
import hashlib

import httpx
import orjson
import pytest

from diffuserve.client import leases
from diffuserve.client.http import HttpTransport
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import LeaseLost, UploadFailed
from diffuserve.domain.workers.worker import Registration, StoredFile, WorkerReport, WorkerState
from support.virtual_time import in_virtual_time, now

REGISTRATION = Registration(models=(), report=WorkerReport(state=WorkerState.READY))
STORED = StoredFile(name="0.png", size_bytes=8, sha256=hashlib.sha256(b"an image").hexdigest())


class Plane:
    """Control plane, and a bucket that gives these responses in turn."""

    def __init__(self, *bucket: httpx.Response | Exception, signs_urls: bool = True) -> None:
        self.bucket = iter(bucket)
        self.signs_urls = signs_urls
        self.is_lost = False
        self.seconds_away = 0.0
        self.num_upload_urls = 0
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.host == "bucket":
            response = next(self.bucket)
            if isinstance(response, Exception):
                raise response
            return response
        if request.url.path == "/v1/workers":
            registered = {"worker_id": "w", "lease_seconds": 30, "heartbeat_seconds": 10}
            return httpx.Response(201, json=registered | {"asks_for_upload_urls": self.signs_urls})
        if request.method == "PUT":
            return httpx.Response(201, content=orjson.dumps(STORED))
        if self.is_lost:
            return httpx.Response(409, json={"code": "lease_lost", "detail": "lost", "job_id": "job"})
        if self.seconds_away and now() < self.seconds_away:
            away = {"code": "storage_away", "detail": "no bucket", "retryable": True}
            return httpx.Response(503, json=away, headers={"retry-after": "5"})
        self.num_upload_urls += 1
        return httpx.Response(200, json={"url": f"http://bucket/0.png?signature={self.num_upload_urls}"})

    async def client(self) -> LeaseClient:
        transport = HttpTransport(
            "http://plane",
            "dfs_secret",
            patience_seconds=6 * 3_600.0,
            transport=httpx.MockTransport(self),
            waits_for_storage=True,
        )
        client = LeaseClient(transport)
        await client.register(REGISTRATION)
        return client


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_UPLOAD_PAUSE", 0.0)


async def upload(plane: Plane) -> StoredFile:
    client = await plane.client()
    return await client.upload("job", 7, "0.png", lambda: b"an image")


async def test_no_upload_url_is_requested_without_a_bucket() -> None:
    plane = Plane(signs_urls=False)
    assert await upload(plane) == STORED
    assert [request.method for request in plane.requests] == ["POST", "PUT"]


async def test_a_bucket_receives_the_file_and_its_checksum_but_no_api_key() -> None:
    plane = Plane(httpx.Response(200))
    assert await upload(plane) == STORED
    request = plane.requests[-1]
    assert (request.method, request.url.host, request.content) == ("PUT", "bucket", b"an image")
    assert request.headers["content-md5"] == base64.b64encode(hashlib.md5(b"an image").digest()).decode()
    assert request.headers["content-type"] == "image/png"
    assert "authorization" not in request.headers
    assert "lease-token" not in request.headers


@pytest.mark.parametrize(
    "failures",
    [
        (httpx.Response(500), httpx.Response(503)),
        (httpx.ReadTimeout("slow"),),
        (httpx.RemoteProtocolError("cut"), httpx.Response(500)),
    ],
)
async def test_an_upload_is_retried_after_errors_of_the_bucket(
    failures: tuple[httpx.Response | Exception, ...],
) -> None:
    plane = Plane(*failures, httpx.Response(200))
    assert await upload(plane) == STORED
    assert plane.num_upload_urls == 1


async def test_an_expired_upload_url_is_requested_again() -> None:
    plane = Plane(httpx.Response(403, text="<Error><Code>AccessDenied</Code></Error>"), httpx.Response(200))
    assert await upload(plane) == STORED
    assert plane.requests[-1].url.params["signature"] == "2"


async def test_a_lost_lease_ends_the_upload() -> None:
    plane = Plane()
    plane.is_lost = True
    with pytest.raises(LeaseLost):
        await upload(plane)


NO_BUCKET = "<?xml?><Error><Code>NoSuchBucket</Code><Message>The bucket does not exist</Message></Error>"


TOO_LARGE = "<Error><Code>EntityTooLarge</Code><Message>Your upload is too large</Message></Error>"


async def test_a_file_that_the_bucket_refuses_fails_after_three_urls() -> None:
    plane = Plane(*[httpx.Response(400, text=TOO_LARGE)] * 3, httpx.Response(200))
    with pytest.raises(UploadFailed, match=r"0\.png .*400: EntityTooLarge: Your upload is too large$"):
        await upload(plane)
    assert plane.num_upload_urls == 3


@pytest.mark.parametrize(
    "refusal", [httpx.Response(404, text=NO_BUCKET), httpx.Response(403), httpx.Response(401)]
)
async def test_a_bucket_that_is_missing_or_gives_no_access_is_waited_for(refusal: httpx.Response) -> None:
    plane = Plane(*[refusal] * 20, httpx.Response(200))
    assert await upload(plane) == STORED


@in_virtual_time
async def test_a_bucket_that_is_away_for_all_is_waited_for_and_nothing_is_read_meanwhile() -> None:
    reads: list[float] = []

    def read() -> bytes:
        reads.append(now())
        return b"an image"

    plane = Plane(httpx.Response(200))
    plane.seconds_away = 4 * 3_600.0
    client = await plane.client()
    assert await client.upload("job", 7, "0.png", read) == STORED
    assert len(reads) == 1
    assert reads[0] >= 4 * 3_600.0


@in_virtual_time
async def test_a_client_knows_whether_the_store_is_away() -> None:
    plane = Plane(httpx.ConnectError("refused"), httpx.Response(200))
    plane.seconds_away = 60.0
    client = await plane.client()
    stored = asyncio.create_task(client.upload("job", 7, "0.png", lambda: b"an image"))
    await asyncio.sleep(30.0)
    assert client.is_storage_away
    await stored
    assert not client.is_storage_away


@in_virtual_time
async def test_an_upload_to_a_bucket_that_stays_away_fails_in_bounded_time() -> None:
    plane = Plane(*[httpx.ConnectError("refused")] * 10_000)
    with pytest.raises(UploadFailed, match="bucket does not respond"):
        await upload(plane)
    assert leases._BUCKET_OUTAGE_SECONDS <= now() <= 2 * leases._BUCKET_OUTAGE_SECONDS
