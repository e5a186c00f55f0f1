"""Uploads: through the control plane, or straight to a bucket."""

import base64
import hashlib

import httpx
import orjson
import pytest

from diffuserve.client import leases
from diffuserve.client.http import HttpTransport
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import LeaseLost
from diffuserve.domain.worker import Registration, StoredFile, WorkerReport, WorkerState

REGISTRATION = Registration(models=(), report=WorkerReport(state=WorkerState.READY))
STORED = StoredFile(name="0.png", size_bytes=8, sha256=hashlib.sha256(b"an image").hexdigest())


class Plane:
    """A control plane, and a bucket that gives these answers in turn."""

    def __init__(self, *bucket: httpx.Response | Exception, signs_urls: bool = True) -> None:
        self.bucket = iter(bucket)
        self.signs_urls = signs_urls
        self.is_lost = False
        self.asked = 0
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.host == "bucket":
            answer = next(self.bucket)
            if isinstance(answer, Exception):
                raise answer
            return answer
        if request.url.path == "/v1/workers":
            told = {"worker_id": "w", "lease_seconds": 30, "heartbeat_seconds": 10}
            return httpx.Response(201, json=told | {"asks_for_upload_urls": self.signs_urls})
        if request.method == "PUT":
            return httpx.Response(201, content=orjson.dumps(STORED))
        if self.is_lost:
            return httpx.Response(409, json={"code": "lease_lost", "detail": "lost", "job_id": "job"})
        self.asked += 1
        return httpx.Response(200, json={"url": f"http://bucket/0.png?signature={self.asked}"})

    async def client(self) -> LeaseClient:
        transport = HttpTransport(
            "http://plane", "dfs_secret", patience_seconds=30.0, transport=httpx.MockTransport(self)
        )
        client = LeaseClient(transport)
        await client.register(REGISTRATION)
        return client


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_UPLOAD_PAUSE", 0.0)


async def upload(plane: Plane) -> StoredFile:
    client = await plane.client()
    return await client.upload("job", 7, "0.png", b"an image")


async def test_a_control_plane_without_a_bucket_is_not_asked_for_urls() -> None:
    plane = Plane(signs_urls=False)
    assert await upload(plane) == STORED
    assert [one.method for one in plane.requests] == ["POST", "PUT"]


async def test_a_bucket_gets_the_file_with_its_checksum_and_never_our_key() -> None:
    plane = Plane(httpx.Response(200))
    assert await upload(plane) == STORED
    request = plane.requests[-1]
    assert (request.method, request.url.host, request.content) == ("PUT", "bucket", b"an image")
    assert request.headers["content-md5"] == base64.b64encode(hashlib.md5(b"an image").digest()).decode()
    assert request.headers["content-type"] == "image/png"
    assert "authorization" not in request.headers
    assert "lease-token" not in request.headers


@pytest.mark.parametrize(
    "trouble",
    [
        (httpx.Response(500), httpx.Response(503)),
        (httpx.ReadTimeout("slow"),),
        (httpx.RemoteProtocolError("cut"), httpx.Response(500)),
    ],
)
async def test_trouble_on_the_way_is_outlived(trouble: tuple[httpx.Response | Exception, ...]) -> None:
    plane = Plane(*trouble, httpx.Response(200))
    assert await upload(plane) == STORED
    assert plane.asked == 1


async def test_a_url_that_is_too_old_is_asked_for_again() -> None:
    plane = Plane(httpx.Response(403, text="<Error><Code>AccessDenied</Code></Error>"), httpx.Response(200))
    assert await upload(plane) == STORED
    assert plane.requests[-1].url.params["signature"] == "2"


async def test_a_lost_lease_ends_it() -> None:
    plane = Plane()
    plane.is_lost = True
    with pytest.raises(LeaseLost):
        await upload(plane)
