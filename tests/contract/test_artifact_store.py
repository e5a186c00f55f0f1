"""The contract of artifact stores."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from diffuserve.domain.errors import ArtifactNotFound, InvalidParams, ServerUnavailable, TooLarge
from diffuserve.storage.base import INPUTS, ArtifactStore, UploadedFile, input_folder, input_key
from diffuserve.storage.local import LocalArtifactStore
from diffuserve.storage.opening import open_artifacts
from support.gcs import GcsServer
from support.s3 import S3Server, bucket_at
from support.waiting import eventually

KEY = "job/1/0.png"
OUTSIDE = ["../x", "/x", "job/../../x", "../artifacts-of-others/x"]


@dataclass(frozen=True)
class Place:
    """A store, and a look behind it."""

    store: ArtifactStore
    files: Callable[[], set[str]]
    """Every file that takes up room, half ones included."""
    tick: float = 0.1
    """Seconds that its times tell apart."""


def _local(folder: Path) -> Place:
    root = folder / "artifacts"

    def files() -> set[str]:
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    return Place(LocalArtifactStore(root), files)


def _bucket(server: S3Server) -> Place:
    """A new bucket, of which the store has a part."""
    name, prefix = server.create_bucket(), "some/prefix/"
    server.client.put_object(Bucket=name, Key="elsewhere/1/a", Body=b"not ours")

    def files() -> set[str]:
        keys = [item["Key"] for item in server.client.list_objects_v2(Bucket=name)["Contents"]]
        half = server.client.list_multipart_uploads(Bucket=name).get("Uploads", [])
        assert "elsewhere/1/a" in keys
        whole = {key.removeprefix(prefix) for key in keys if key.startswith(prefix)}
        return whole | {upload["Key"] for upload in half}

    return Place(server.store(name, prefix.rstrip("/")), files, tick=1.1)


def _gcs_bucket(server: GcsServer) -> Place:
    name, prefix = server.create_bucket(), "some/prefix/"

    def files() -> set[str]:
        return {key.removeprefix(prefix) for key in server.keys(name)}

    return Place(server.store(name, prefix.rstrip("/")), files)


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with GcsServer() as server:
        yield server


@pytest.fixture(params=["local", "s3", "gcs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "s3":
            return _bucket(request.getfixturevalue("s3"))
        case "gcs":
            return _gcs_bucket(request.getfixturevalue("gcs"))
    return _local(tmp_path)


@pytest.fixture
def store(place: Place) -> ArtifactStore:
    return place.store


async def _stream(*chunks: bytes, error: BaseException | None = None) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    if error is not None:
        raise error


async def _put(store: ArtifactStore, key: str, *chunks: bytes) -> UploadedFile:
    return await store.put(key, _stream(*chunks), max_bytes=1 << 24)


async def _content(store: ArtifactStore, key: str) -> bytes:
    return b"".join([chunk async for chunk in store.read(key)])


@pytest.mark.parametrize(
    "chunks",
    [[b"a star"], [b"a" * 300_000, b"b" * 300_000, b"c"], [b"", b"late"], [b""], []],
    ids=["one", "many", "late", "empty", "none"],
)
async def test_a_stored_file_is_read_back(place: Place, chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    stored = await _put(place.store, KEY, *chunks)
    assert stored == UploadedFile(KEY, len(whole), hashlib.sha256(whole).hexdigest())
    assert await place.store.size(KEY) == len(whole)
    assert await _content(place.store, KEY) == whole
    assert place.files() == {KEY}


async def test_files_that_are_stored_together_replace_earlier_ones(place: Place) -> None:
    await _put(place.store, KEY, b"an older star")
    files = {KEY: b"a star", "job/1/0.webp": b"", "job/2/0.png": b"another"}
    await place.store.put_all(files)
    assert {key: await _content(place.store, key) for key in files} == files
    assert place.files() == set(files)


@pytest.mark.parametrize("key", OUTSIDE)
async def test_no_file_is_stored_outside_with_others(store: ArtifactStore, key: str) -> None:
    with pytest.raises(ArtifactNotFound):
        await store.put_all({key: b"a star"})


@pytest.mark.parametrize(
    "part", [range(1), range(5, 6), range(250_000, 300_000), range(299_999, 300_000), range(300_000)], ids=str
)
async def test_a_part_of_a_file_is_read(store: ArtifactStore, part: range) -> None:
    whole = bytes(range(250)) * 1_200
    await _put(store, KEY, whole)
    chunks = [chunk async for chunk in store.read(KEY, part)]
    assert b"".join(chunks) == whole[part.start : part.stop]


async def test_a_second_put_replaces_the_first(place: Place) -> None:
    await _put(place.store, KEY, b"a long first file")
    await _put(place.store, KEY, b"second")
    assert await place.store.size(KEY) == len(b"second")
    assert await _content(place.store, KEY) == b"second"
    assert place.files() == {KEY}


async def test_a_file_appears_once_it_is_complete(store: ArtifactStore) -> None:
    async def looking() -> AsyncIterator[bytes]:
        yield b"half"
        with pytest.raises(ArtifactNotFound):
            await store.size(KEY)
        yield b"whole"

    await store.put(KEY, looking(), max_bytes=100)
    assert await _content(store, KEY) == b"halfwhole"


async def test_a_file_of_the_maximum_size_is_stored(store: ArtifactStore) -> None:
    assert (await store.put(KEY, _stream(b"1234", b"56"), max_bytes=6)).size_bytes == 6


@pytest.mark.parametrize("before", [(), (b"first",)])
async def test_nothing_is_left_of_a_file_that_is_too_large(place: Place, before: tuple[bytes, ...]) -> None:
    await _expect_untouched(place, before, _stream(b"1234", b"567"), TooLarge)


@pytest.mark.parametrize("before", [(), (b"first",)])
@pytest.mark.parametrize("error", [ConnectionError("gone"), asyncio.CancelledError()])
async def test_nothing_is_left_of_an_interrupted_upload(
    place: Place, before: tuple[bytes, ...], error: BaseException
) -> None:
    await _expect_untouched(place, before, _stream(b"12", b"34", error=error), type(error))


async def _expect_untouched(
    place: Place, before: tuple[bytes, ...], chunks: AsyncIterator[bytes], error: type[BaseException]
) -> None:
    if before:
        await _put(place.store, KEY, *before)
    with pytest.raises(error):
        await place.store.put(KEY, chunks, max_bytes=6)
    if before:
        assert await _content(place.store, KEY) == b"".join(before)
    else:
        with pytest.raises(ArtifactNotFound):
            await place.store.size(KEY)
    assert place.files() == ({KEY} if before else set())


@pytest.mark.parametrize("missing", ["job/1/1.png", "job/1", "job/2/0.png", "nobody/1/0.png"])
async def test_a_missing_file_is_not_found(store: ArtifactStore, missing: str) -> None:
    await _put(store, KEY, b"there")
    with pytest.raises(ArtifactNotFound):
        await store.size(missing)
    with pytest.raises(ArtifactNotFound):
        await anext(store.read(missing))


@pytest.mark.parametrize(
    ("prefix", "left"),
    [
        ("job/1", {"job/10/a", "job1/1/a"}),
        ("job/10", {"job/1/a", "job/1/b", "job1/1/a"}),
        ("job", {"job1/1/a"}),
        ("job1/1", {"job/1/a", "job/1/b", "job/10/a"}),
        ("job/2", {"job/1/a", "job/1/b", "job/10/a", "job1/1/a"}),
        ("jo", {"job/1/a", "job/1/b", "job/10/a", "job1/1/a"}),
    ],
)
async def test_only_files_under_the_prefix_are_deleted(place: Place, prefix: str, left: set[str]) -> None:
    for key in ("job/1/a", "job/1/b", "job/10/a", "job1/1/a"):
        await _put(place.store, key, key.encode())
    await place.store.delete(prefix)
    assert place.files() == left
    for key in left:
        assert await _content(place.store, key) == key.encode()


async def test_a_deleted_key_can_be_put_again(store: ArtifactStore) -> None:
    await _put(store, KEY, b"first")
    await store.delete("job/1")
    with pytest.raises(ArtifactNotFound):
        await anext(store.read(KEY))
    await _put(store, KEY, b"second")
    assert await _content(store, KEY) == b"second"


async def test_attempts_are_listed_once_unchanged_for_long_enough(place: Place) -> None:
    store = place.store
    for key in ("ada/1/a", "ada/1/b", "ada/12/a", "bob/1/a", "eve/3/a"):
        await _put(store, key, b"old")
    await asyncio.sleep(2 * place.tick)
    changed = time.monotonic()
    for key in ("ada/2/a", "eve/3/b"):  # a new attempt, and something new in an old one
        await _put(store, key, b"new")

    async def only_the_old_are_listed() -> bool:
        between = time.monotonic() - changed + place.tick  # older than the new ones, unless the call is slow
        return sorted(await store.attempts(between)) == [("ada", 1), ("ada", 12), ("bob", 1)]

    await eventually(only_the_old_are_listed)
    assert await store.attempts(3600) == []


async def test_a_deleted_attempt_is_no_longer_listed(place: Place) -> None:
    store = place.store
    for key in ("ada/1/a", "ada/2/a"):
        await _put(store, key, b"old")
    await store.delete("ada/1")
    await asyncio.sleep(place.tick)
    assert await store.attempts(0.05) == [("ada", 2)]


async def test_uploaded_images_are_listed_apart_from_attempts(place: Place) -> None:
    store = place.store
    for key in (input_key("file-0a"), input_key("file-0b"), f"{INPUTS}/12/image.png", "ada/1/a"):
        await _put(store, key, b"old")
    await asyncio.sleep(place.tick)
    assert sorted(await store.inputs(0.05)) == ["12", "file-0a", "file-0b"]
    assert await store.attempts(0.05) == [("ada", 1)]
    assert await store.inputs(3600) == []
    await store.delete(input_folder("file-0a"))
    assert place.files() == {input_key("file-0b"), f"{INPUTS}/12/image.png", "ada/1/a"}


@pytest.mark.parametrize("key", OUTSIDE)
async def test_keys_outside_the_store_are_refused(place: Place, tmp_path: Path, key: str) -> None:
    for name in ("x", "artifacts-of-others/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"not ours")
    with pytest.raises(ArtifactNotFound):
        await _put(place.store, key, b"ours")
    with pytest.raises(ArtifactNotFound):
        await place.store.size(key)
    with pytest.raises(ArtifactNotFound):
        await anext(place.store.read(key))
    with pytest.raises(ArtifactNotFound):
        await place.store.delete(key)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "artifacts-of-others/x").read_bytes() == b"not ours"


@pytest.mark.parametrize("prefix", ["", ".", "..", "/", "job/..", "../artifacts-of-others"])
async def test_the_store_as_a_whole_cannot_be_deleted(place: Place, tmp_path: Path, prefix: str) -> None:
    (tmp_path / "artifacts-of-others").mkdir()
    await _put(place.store, KEY, b"ours")
    with pytest.raises(ArtifactNotFound):
        await place.store.delete(prefix)
    assert place.files() == {KEY}
    assert (tmp_path / "artifacts-of-others").is_dir()


@pytest.fixture(params=["s3", "gcs"])
def bucket(request: pytest.FixtureRequest) -> ArtifactStore:
    server = request.getfixturevalue(request.param)
    place = _bucket(server) if request.param == "s3" else _gcs_bucket(server)
    return place.store


async def test_a_signed_url_serves_a_file_with_its_media_type(bucket: ArtifactStore) -> None:
    await _put(bucket, KEY, b"an image")
    url = await bucket.download_url(KEY, 60)
    assert url is not None
    async with httpx.AsyncClient() as client:
        answer = await client.get(url)
    assert (answer.content, answer.headers["content-type"]) == (b"an image", "image/png")
    assert "-Expires=60" in url


async def test_a_signed_url_accepts_an_upload(bucket: ArtifactStore) -> None:
    url = await bucket.upload_url(KEY, 60)
    assert url is not None
    async with httpx.AsyncClient() as client:
        answer = await client.put(url, content=b"an image", headers={"content-type": "image/png"})
    assert answer.status_code == 200
    assert await _content(bucket, KEY) == b"an image"


async def test_a_large_file_is_uploaded_in_parts(s3: S3Server) -> None:
    place = _bucket(s3)
    content = bytes(range(256)) * (80 * 1024)
    stored = await place.store.put(KEY, _stream(content), max_bytes=len(content))
    assert stored.sha256 == hashlib.sha256(content).hexdigest()
    assert await _content(place.store, KEY) == content
    assert place.files() == {KEY}


async def test_a_folder_signs_no_urls(tmp_path: Path) -> None:
    store = open_artifacts(tmp_path.as_uri())
    await _put(store, KEY, b"an image")
    assert await store.download_url(KEY, 60) is None


async def test_an_unavailable_bucket_raises_an_error() -> None:
    with pytest.raises(ServerUnavailable, match="the artifact store is unavailable"):
        await bucket_at("http://127.0.0.1:9", "images").size(KEY)


@pytest.mark.parametrize("url", ["s3:/bucket", "ftp://bucket", "images", "s3://"])
def test_a_url_of_no_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidParams, match="artifacts_url"):
        open_artifacts(url)


async def test_a_buckets_credentials_come_from_the_environment(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {
        "ENDPOINT_URL": s3.url,
        "REGION": "us-east-1",
        "ACCESS_KEY_ID": "key",
        "SECRET_ACCESS_KEY": "secret",
    }
    for name, value in (said | {"ALLOW_HTTP": "true"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    store = open_artifacts(f"s3://{s3.create_bucket()}/results")
    await _put(store, KEY, b"an image")
    assert await _content(store, KEY) == b"an image"
