"""Downloads of the images that jobs read, from the control plane or from a bucket."""

import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from diffuserve.client import input_files
from diffuserve.client.http import HttpTransport
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import ArtifactNotFound, DownloadFailed, LeaseLost, NotFound
from support.virtual_time import in_virtual_time, now

CONTENT = b"an image" * 100_000
NO_BUCKET = "<Error><Code>NoSuchBucket</Code><Message>The bucket does not exist</Message></Error>"
NO_KEY = "<Error><Code>NoSuchKey</Code><Message>The key does not exist</Message></Error>"
Outcome = httpx.Response | Exception


class Plane:
    """A control plane that lists one file, and gives these outcomes in turn for its content."""

    def __init__(self, *outcomes: Outcome, signs_urls: bool = True, content: bytes = CONTENT) -> None:
        self.outcomes = iter(outcomes)
        self.signs_urls = signs_urls
        self.file = {
            "id": "file_1",
            "size_bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        self.refusal: httpx.Response | None = None
        self.seconds_away = 0.0
        self.num_lists = 0
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.path == "/v1/leases/job/inputs":
            return self._list()
        outcome = next(self.outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _list(self) -> httpx.Response:
        if self.num_lists and now() < self.seconds_away:
            away = {"code": "storage_away", "detail": "no bucket", "retryable": True}
            return httpx.Response(503, json=away, headers={"retry-after": "60"})
        if self.refusal is not None:
            return self.refusal
        self.num_lists += 1
        url = f"http://bucket/file_1?signature={self.num_lists}" if self.signs_urls else None
        return httpx.Response(200, json={"files": [{**self.file, "url": url}]})

    async def fetch(self, folder: Path) -> dict[str, Path]:
        transport = HttpTransport(
            "http://plane", "dfs_secret", patience_seconds=7_200.0, transport=httpx.MockTransport(self)
        )
        return await LeaseClient(transport).fetch_inputs("job", 7, ["file_1"], folder)


def respond(status: int = 200, content: bytes | str = CONTENT) -> httpx.Response:
    return httpx.Response(status, content=content)


async def test_a_bucket_is_asked_without_the_lease_and_the_api_key(tmp_path: Path) -> None:
    plane = Plane(respond())
    paths = await plane.fetch(tmp_path)
    assert {name: path.read_bytes() for name, path in paths.items()} == {"file_1": CONTENT}
    listing, download = plane.requests
    assert listing.headers["lease-token"] == "7"
    assert listing.headers["authorization"] == "Bearer dfs_secret"
    assert download.url.host == "bucket"
    assert not {"lease-token", "authorization"} & set(download.headers)


async def test_without_a_bucket_the_control_plane_sends_the_file_by_the_lease(tmp_path: Path) -> None:
    plane = Plane(respond(), signs_urls=False)
    paths = await plane.fetch(tmp_path)
    assert paths["file_1"].read_bytes() == CONTENT
    download = plane.requests[-1]
    assert str(download.url) == "http://plane/v1/leases/job/inputs/file_1"
    assert download.headers["lease-token"] == "7"
    assert download.headers["authorization"] == "Bearer dfs_secret"


@pytest.mark.parametrize(
    "failures",
    [
        (respond(500, ""), respond(503, "")),
        (httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("cut")),
        (respond(403, "<Error><Code>AccessDenied</Code></Error>"),),
        (respond(200, CONTENT[:-1]),),
        (respond(200, CONTENT[:-1] + b"?"), respond(200, CONTENT + b"more")),
    ],
)
@in_virtual_time
async def test_a_download_that_fails_at_first_is_repeated_with_a_new_url(
    tmp_path: Path, failures: tuple[Outcome, ...]
) -> None:
    plane = Plane(*failures, respond())
    paths = await plane.fetch(tmp_path)
    assert paths["file_1"].read_bytes() == CONTENT
    signatures = [
        request.url.params["signature"] for request in plane.requests if request.url.host == "bucket"
    ]
    assert signatures == [str(number) for number in range(1, len(failures) + 2)]


@pytest.mark.parametrize("content", [b"another", CONTENT + b"more"])
@in_virtual_time
async def test_a_file_that_is_never_what_was_announced_fails_after_three_tries(
    tmp_path: Path, content: bytes
) -> None:
    plane = Plane(*(respond(200, content) for _ in range(3)))
    with pytest.raises(DownloadFailed, match=r"^file_1 could not be fetched: .* 800,000 bytes"):
        await plane.fetch(tmp_path)
    assert plane.num_lists == 3


async def test_no_more_is_written_than_was_announced(tmp_path: Path) -> None:
    sent: list[None] = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            sent.append(None)
            yield b"x" * 100_000

    plane = Plane(*(httpx.Response(200, content=endless()) for _ in range(3)))
    with pytest.raises(DownloadFailed):
        await plane.fetch(tmp_path)
    assert len(sent) <= 3 * (len(CONTENT) // 100_000 + 2)
    assert all(path.stat().st_size <= len(CONTENT) for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("plane", "error"),
    [
        (Plane(respond(404, NO_KEY)), ArtifactNotFound),
        (Plane(httpx.Response(404, json={"code": "artifact_not_found", "detail": "gone"})), ArtifactNotFound),
    ],
)
async def test_a_file_that_is_gone_is_not_asked_for_again(
    tmp_path: Path, plane: Plane, error: type[NotFound]
) -> None:
    with pytest.raises(error):
        await plane.fetch(tmp_path)
    assert plane.num_lists == 1


@in_virtual_time
async def test_a_bucket_that_is_missing_is_no_file_that_is_gone(tmp_path: Path) -> None:
    plane = Plane(*(respond(404, NO_BUCKET) for _ in range(10)), respond())
    assert (await plane.fetch(tmp_path))["file_1"].read_bytes() == CONTENT, "somebody made it again"


@in_virtual_time
async def test_a_store_that_is_away_for_all_is_waited_for_longer_than_for_this_worker_alone(
    tmp_path: Path,
) -> None:
    plane = Plane(respond(503, ""), respond(503, ""), respond())
    plane.seconds_away = 3_600.0
    assert (await plane.fetch(tmp_path))["file_1"].read_bytes() == CONTENT
    assert now() > 3_600.0


@pytest.mark.parametrize(
    ("code", "status", "error"), [("lease_lost", 409, LeaseLost), ("not_found", 404, NotFound)]
)
async def test_the_control_planes_word_on_the_job_is_final(
    tmp_path: Path, code: str, status: int, error: type[Exception]
) -> None:
    plane = Plane()
    plane.refusal = httpx.Response(status, json={"code": code, "detail": "as said", "job_id": "job"})
    with pytest.raises(error):
        await plane.fetch(tmp_path)


@pytest.mark.parametrize(
    "failure",
    [lambda: respond(503, ""), lambda: httpx.ConnectError("refused"), lambda: respond(404, NO_BUCKET)],
)
@in_virtual_time
async def test_a_store_that_stays_away_is_given_up_in_bounded_time(
    tmp_path: Path, failure: Callable[[], Outcome]
) -> None:
    plane = Plane(*(failure() for _ in range(1_000)))
    with pytest.raises(DownloadFailed, match="http://bucket "):
        await plane.fetch(tmp_path)
    assert input_files._PATIENCE_SECONDS / 2 <= now() <= input_files._PATIENCE_SECONDS


@in_virtual_time
async def test_a_store_that_refuses_the_control_plane_is_asked_again(tmp_path: Path) -> None:
    refused = httpx.Response(503, json={"code": "storage_refused", "detail": "no access", "retryable": False})
    plane = Plane(refused, refused, refused, refused, respond(), signs_urls=False)
    assert (await plane.fetch(tmp_path))["file_1"].read_bytes() == CONTENT, "an operator gave access"
