"""The trial of an artifact store: it leaves nothing behind, and says what is wrong with a store."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.exceptions import GenericError

from diffuserve.domain.errors import InvalidParams, ServerUnavailable, StorageRefused
from diffuserve.remote import buckets
from diffuserve.settings import Settings
from diffuserve.storage import watch
from diffuserve.storage.local import LocalArtifactStore
from diffuserve.storage.probe import probe
from diffuserve.storage.watch import StorageWatch
from diffuserve.wiring.control import open_storage, running
from support.faulty_proxy import Delay, FaultyProxy, Respond
from support.gcs import GcsServer
from support.s3 import S3Server, bucket_at
from support.waiting import eventually


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with GcsServer() as server:
        yield server


async def test_a_working_folder_is_left_as_it_was(tmp_path: Path) -> None:
    await probe(LocalArtifactStore(tmp_path / "artifacts"))
    assert list((tmp_path / "artifacts").iterdir()) == []


async def test_a_working_bucket_is_left_as_it_was(s3: S3Server, gcs: GcsServer) -> None:
    name, other = s3.create_bucket(), gcs.create_bucket()
    await probe(s3.store(name, "results"))
    await probe(gcs.store(other, "results"))
    assert "Contents" not in s3.client.list_objects_v2(Bucket=name)
    assert gcs.keys(other) == set()


async def test_a_missing_bucket_of_google_is_named(gcs: GcsServer) -> None:
    with pytest.raises(StorageRefused, match=r"gs://nobody-made-this/results: .*no such bucket; create it"):
        await probe(gcs.store("nobody-made-this", "results"))


async def test_a_missing_bucket_is_named_with_its_endpoint_and_the_remedy(s3: S3Server) -> None:
    with pytest.raises(StorageRefused) as refused:
        await probe(s3.store("nobody-made-this", "results"))
    assert refused.value.is_missing
    assert str(refused.value) == (
        f"cannot put a file in s3://nobody-made-this/results: the artifact store {s3.url} has no such "
        "bucket; create it, or correct DIFFUSERVE_ARTIFACTS_URL, AWS_REGION or AWS_ENDPOINT_URL"
    )


@pytest.mark.parametrize(
    ("num_allowed", "action"), [(0, "put a file"), (1, "get a file"), (2, "list or delete a file")]
)
async def test_a_missing_permission_is_named(
    proxy: FaultyProxy, s3: S3Server, num_allowed: int, action: str
) -> None:
    store = bucket_at(proxy.url, s3.create_bucket(), "results")
    proxy.fail_next(*[Delay(0.0)] * num_allowed)
    proxy.always = Respond(403)
    with pytest.raises(StorageRefused, match=f"^cannot {action} in .*refuses access.*AWS_ACCESS_KEY_ID"):
        await probe(store)


async def test_a_bucket_that_does_not_respond_is_no_refusal() -> None:
    with pytest.raises(
        ServerUnavailable, match=r"cannot put a file in s3://images: .*AWS_ENDPOINT_URL"
    ) as away:
        await probe(bucket_at("http://127.0.0.1:9", "images"))
    assert not isinstance(away.value, StorageRefused)


async def test_a_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalArtifactStore(tmp_path / "artifacts")

    def refuse(*_arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(store, "_make_folder", refuse)
    with pytest.raises(StorageRefused, match=r"cannot put a file in .*artifacts: .*Permission denied; let"):
        await probe(store)


def use_bucket(monkeypatch: pytest.MonkeyPatch, endpoint: str, bucket: str, folder: Path) -> Settings:
    said = {"ENDPOINT_URL": endpoint, "REGION": "us-east-1", "ALLOW_HTTP": "true"}
    for name, value in (said | {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return Settings(data_dir=folder, artifacts_url=f"s3://{bucket}/results")


async def test_a_server_with_a_missing_bucket_does_not_start(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = use_bucket(monkeypatch, s3.url, "nobody-made-this", tmp_path)
    with pytest.raises(InvalidParams, match=r"artifacts_url='s3://nobody-made-this/.*no such bucket"):
        async with open_storage(settings):
            pass


async def test_a_bucket_without_tls_names_the_variable_that_allows_it(
    s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = use_bucket(monkeypatch, s3.url, bucket, tmp_path)
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(InvalidParams, match=rf"AWS_ENDPOINT_URL='{s3.url}': .* set AWS_ALLOW_HTTP=true"):
        async with open_storage(settings):
            pass


async def test_a_server_starts_without_a_bucket_that_is_away_and_says_when_it_is_back(
    proxy: FaultyProxy,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(watch, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(watch, "each_minute", lambda _num_logged: 0.1)
    monkeypatch.setitem(buckets.RETRIES, "max_retries", 0)
    settings = use_bucket(monkeypatch, proxy.url, bucket, tmp_path)
    proxy.always = Respond(503)
    async with open_storage(settings) as store, running(StorageWatch(store).run()):
        await eventually(lambda: "no job finishes until this works" in caplog.text)
        await eventually(lambda: "cannot put a file" in caplog.text)
        await eventually(lambda: "still so after" in caplog.text)
        proxy.always = None
        await eventually(lambda: "is back after" in caplog.text)


@pytest.mark.parametrize(("status", "is_final"), [("404", True), ("", False)])
def test_a_machine_without_credentials_is_told_so(status: str, is_final: bool) -> None:
    text = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 2 s"
    error = buckets.bucket_error(
        GenericError(f"{text} - status code: {status}" if status else text), "artifact store", None
    )
    assert "there are no credentials in the environment" in str(error)
    assert isinstance(error, StorageRefused) is is_final
