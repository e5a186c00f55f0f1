"""A bucket that fails: what recovers is outlived, what does not is said, and no half file counts."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from diffuserve.domain.errors import ArtifactNotFound, ServerUnavailable
from diffuserve.storage.base import ArtifactStore, UploadedFile
from diffuserve.storage.opening import open_artifacts
from support.faulty_proxy import CutRequest, CutResponse, Delay, Fault, FaultyProxy, Respond
from support.s3 import S3Server, bucket_at
from support.waiting import HANG_SECONDS

KEY = "job/1/0.png"
IMAGE = bytes(range(256)) * 1_000
FAULTS = [(Respond(503), Respond(500), Respond(503)), (CutResponse(),), (CutRequest(), CutResponse())]
NAMES = ["503", "answer cut", "request cut"]


@pytest.fixture
def behind(s3: S3Server, bucket: str) -> ArtifactStore:
    """The same files, without the faults."""
    return s3.store(bucket, "results")


@pytest.fixture
def store(proxy: FaultyProxy, bucket: str, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    """Return the store with the retries and timeouts of a server."""
    said = {"ENDPOINT_URL": proxy.url, "REGION": "us-east-1", "ALLOW_HTTP": "true"}
    for name, value in (said | {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return open_artifacts(f"s3://{bucket}/results")


async def _put(store: ArtifactStore, content: bytes = IMAGE) -> UploadedFile:
    async def chunks() -> AsyncIterator[bytes]:
        yield content

    return await store.put(KEY, chunks(), max_bytes=1 << 25)


async def _content(store: ArtifactStore) -> bytes:
    return b"".join([chunk async for chunk in store.read(KEY)])


async def _delete(store: ArtifactStore) -> None:
    await store.delete("job/1")


async def _size(store: ArtifactStore) -> int:
    return await store.size(KEY)


async def _attempts(store: ArtifactStore) -> list[tuple[str, int]]:
    return await store.attempts(3_600)


Act = Callable[[ArtifactStore], Awaitable[object]]
ACTS: list[Act] = [_put, _size, _content, _attempts, _delete]


@pytest.mark.parametrize("faults", FAULTS, ids=NAMES)
async def test_temporary_faults_are_retried(
    proxy: FaultyProxy, store: ArtifactStore, behind: ArtifactStore, faults: tuple[Fault, ...]
) -> None:
    proxy.fail_next(*faults)
    stored = await _put(store)
    assert stored == UploadedFile(KEY, len(IMAGE), hashlib.sha256(IMAGE).hexdigest())
    assert await _content(behind) == IMAGE
    proxy.fail_next(*faults)
    assert await _size(store) == len(IMAGE)
    proxy.fail_next(*faults)
    assert await _content(store) == IMAGE


@pytest.mark.parametrize("faults", FAULTS, ids=NAMES)
async def test_an_interrupted_deletion_is_completed_by_the_next(
    proxy: FaultyProxy, store: ArtifactStore, behind: ArtifactStore, faults: tuple[Fault, ...]
) -> None:
    await _put(behind)
    proxy.fail_next(*faults)
    with suppress(ServerUnavailable):  # a list whose end is missing is not asked for again
        await _delete(store)
    await _delete(store)
    with pytest.raises(ArtifactNotFound):
        await _size(behind)


@pytest.mark.parametrize("fault", [Respond(500), Respond(403), CutResponse(), CutRequest()], ids=repr)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
async def test_lasting_faults_raise_an_error(
    proxy: FaultyProxy, bucket: str, behind: ArtifactStore, act: Act, fault: Fault
) -> None:
    await _put(behind)
    proxy.always = fault
    with pytest.raises(ServerUnavailable, match=r"the artifact store (is unavailable|.*refuses access)"):
        await act(bucket_at(proxy.url, bucket, "results"))


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
async def test_a_bucket_that_hangs_times_out(
    proxy: FaultyProxy, bucket: str, behind: ArtifactStore, act: Act
) -> None:
    await _put(behind)
    proxy.always = Delay(2 * HANG_SECONDS)
    async with asyncio.timeout(HANG_SECONDS):
        with pytest.raises(ServerUnavailable):
            await act(bucket_at(proxy.url, bucket, "results", max_retries=0, seconds=0.2))


async def test_a_slow_response_within_the_timeout_is_accepted(
    proxy: FaultyProxy, store: ArtifactStore
) -> None:
    proxy.fail_next(Delay(0.3))
    await _put(store)
    assert len(proxy.requests) == 1


@pytest.mark.parametrize("fault", [CutRequest(), Respond(500)], ids=repr)
@pytest.mark.parametrize("content", [IMAGE, IMAGE * 40], ids=["in one request", "in parts"])
async def test_an_interrupted_put_leaves_the_earlier_file(
    proxy: FaultyProxy, bucket: str, behind: ArtifactStore, content: bytes, fault: Fault
) -> None:
    await _put(behind, b"the first")
    if content != IMAGE:
        proxy.fail_next(Delay(0.0))  # it begins well
    proxy.always = fault
    with pytest.raises(ServerUnavailable):
        await _put(bucket_at(proxy.url, bucket, "results"), content)
    assert await _content(behind) == b"the first"


async def test_urls_are_signed_without_a_request(proxy: FaultyProxy, store: ArtifactStore) -> None:
    proxy.always = Respond(500)
    assert await store.download_url(KEY, 60)
    assert await store.upload_url(KEY, 60)
    assert proxy.requests == []
