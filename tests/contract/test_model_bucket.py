"""Models in buckets: published as a whole or not at all, verified, removed, and garbage collected."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from diffuserve.domain.errors import (
    InvalidModel,
    InvalidParams,
    ModelNotFound,
    StorageRefused,
)
from diffuserve.modelstore.bucket import ModelBucket, Version, open_models
from diffuserve.modelstore.layout import MODELS, NAMES, file_key, manifest_key
from diffuserve.modelstore.manifest import Manifest, Reference
from diffuserve.modelstore.piece_hashes import PIECE_BYTES
from diffuserve.modelstore.publishing import Damage, collect_garbage, push, remove, verify
from support.faulty_proxy import FaultyProxy, Respond
from support.s3 import S3Server
from support.stored_models import manifest_of, write_files

SIZES = {"model_index.json": 100, "vae/a.safetensors": 2 * PIECE_BYTES + 9, "vae/config.json": 30}
NOW = timedelta(0)


def use_server(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Have the environment name an S3 server, as an operator does."""
    said = {"ENDPOINT_URL": url, "REGION": "us-east-1", "ALLOW_HTTP": "true"}
    for name, value in (said | {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture(params=["folder", "s3"])
def models(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelBucket:
    if request.param == "folder":
        return open_models((tmp_path / "store").as_uri())
    server: S3Server = request.getfixturevalue("s3")
    use_server(monkeypatch, server.url)
    return open_models(f"s3://{server.create_bucket()}/some/prefix")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "model", SIZES)


@pytest.fixture
def manifest(folder: Path) -> Manifest:
    return manifest_of(folder)


def keys(models: ModelBucket) -> set[str]:
    return {stored.key for top in (NAMES, MODELS) for stored in models.objects(top)}


def test_a_pushed_model_is_found_by_name_and_by_hash(
    models: ModelBucket, folder: Path, manifest: Manifest
) -> None:
    push(models, folder, manifest)
    for reference in (Reference("small"), Reference("small", manifest.hash[:12])):
        assert models.find(reference).hash == manifest.hash
    assert models.manifest(manifest.hash) == manifest
    read = models.read(manifest, manifest.files[1], range(PIECE_BYTES, PIECE_BYTES + 10))
    assert read == (folder / "vae/a.safetensors").read_bytes()[PIECE_BYTES : PIECE_BYTES + 10]
    assert keys(models) == {
        f"names/small/{manifest.hash}",
        manifest_key(manifest.hash),
        *(file_key(manifest, file) for file in manifest.files),
    }


def test_a_name_means_the_version_that_was_pushed_last(models: ModelBucket, tmp_path: Path) -> None:
    folders = [write_files(tmp_path / f"{seed}", SIZES, seed) for seed in range(2)]
    first, second = (manifest_of(folder) for folder in folders)
    push(models, folders[0], first)
    push(models, folders[1], second)
    assert {version.hash for version in models.versions("small")} == {first.hash, second.hash}
    assert models.find(Reference("small", first.hash)).hash == first.hash
    newest = max(models.versions("small"))
    assert models.find(Reference("small")) == newest


def test_nothing_is_visible_before_everything_is_there(
    models: ModelBucket, folder: Path, manifest: Manifest
) -> None:
    seen: list[Future[list[Version]]] = []
    with ThreadPoolExecutor(1) as another:

        def look(_: int) -> None:
            seen.append(another.submit(models.versions))
            seen[-1].result()

        push(models, folder, manifest, look)
    assert len(seen) > len(SIZES)
    assert not any(versions.result() for versions in seen)


def test_a_push_that_broke_off_is_continued_without_what_is_there(
    models: ModelBucket, folder: Path, manifest: Manifest
) -> None:
    class Broken(Exception):
        pass

    def fail(num_bytes: int) -> None:
        if num_bytes == 30:  # the last file
            raise Broken

    with pytest.raises(Broken):
        push(models, folder, manifest, fail)
    assert models.versions() == []
    reports: list[int] = []
    push(models, folder, manifest, reports.append)
    assert reports == [manifest.num_bytes - 30, 30]
    assert verify(models, manifest) == []


def test_two_pushes_at_once_publish_one_sound_model(
    models: ModelBucket, folder: Path, manifest: Manifest
) -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            push(models, folder, manifest)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [version.hash for version in models.versions()] == [manifest.hash]
    assert verify(models, manifest) == []


def test_a_file_that_changes_while_it_is_pushed_is_not_published(
    models: ModelBucket, folder: Path, manifest: Manifest
) -> None:
    with (folder / "vae/a.safetensors").open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(InvalidModel, match=r"a\.safetensors: was changed while it was pushed"):
        push(models, folder, manifest)
    assert models.versions() == []
    assert file_key(manifest, manifest.files[1]) not in keys(models)


def test_a_removal_during_a_push_leaves_a_whole_model_or_none(
    models: ModelBucket, folder: Path, manifest: Manifest
) -> None:
    push(models, folder, manifest)
    [version] = models.versions()
    is_first = True

    def take_away(_: int) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            remove(models, version)

    push(models, folder, manifest, take_away)
    assert [found.hash for found in models.versions()] == [manifest.hash]
    assert verify(models, manifest) == []


def test_verification_names_every_damage(models: ModelBucket, folder: Path, manifest: Manifest) -> None:
    push(models, folder, manifest)
    content = bytearray((folder / "vae/a.safetensors").read_bytes())
    content[PIECE_BYTES] ^= 1
    models.put(file_key(manifest, manifest.files[1]), bytes(content))
    models.put(file_key(manifest, manifest.files[2]), b"short")
    assert verify(models, manifest) == [
        Damage("vae/a.safetensors", PIECE_BYTES, "differs from the manifest"),
        Damage("vae/config.json", 0, "is missing, or has another size"),
    ]


def test_a_manifest_that_was_replaced_is_refused(
    models: ModelBucket, folder: Path, manifest: Manifest
) -> None:
    push(models, folder, manifest)
    models.put(manifest_key(manifest.hash), manifest.to_json().replace(b"apache-2.0", b"proprietary"))
    with pytest.raises(InvalidModel, match="changed after it was published"):
        models.manifest(manifest.hash)


def test_a_removed_model_is_gone_and_says_so(models: ModelBucket, folder: Path, manifest: Manifest) -> None:
    push(models, folder, manifest)
    [version] = models.versions()
    assert remove(models, version) == manifest.num_bytes
    assert keys(models) == set()
    with pytest.raises(ModelNotFound, match="no model 'small'"):
        models.find(Reference("small"))
    with pytest.raises(ModelNotFound, match="no model with the hash"):
        models.manifest(manifest.hash)
    with pytest.raises(ModelNotFound, match="was the model removed"):
        models.read(manifest, manifest.files[0], range(1))


def test_a_mistyped_name_is_answered_with_the_nearest(
    models: ModelBucket, folder: Path, manifest: Manifest
) -> None:
    push(models, folder, manifest)
    with pytest.raises(ModelNotFound, match="did you mean 'small'"):
        models.find(Reference("smal"))
    with pytest.raises(ModelNotFound, match="no version small@000000000000"):
        models.find(Reference("small", "0" * 12))


def test_garbage_is_what_no_name_publishes_and_is_old_enough(
    models: ModelBucket, folder: Path, manifest: Manifest, tmp_path: Path
) -> None:
    push(models, folder, manifest)
    orphan = manifest_of(write_files(tmp_path / "orphan", SIZES, seed=1))
    models.put(file_key(orphan, orphan.files[0]), b"half")
    models.put(f"names/small/{'0' * 64}", b"stale")
    after = datetime.now(UTC) + timedelta(seconds=2)  # later than every time of the bucket
    assert collect_garbage(models, after, timedelta(hours=1)).keys == ()
    collected = collect_garbage(models, after, NOW)
    assert set(collected.keys) == {file_key(orphan, orphan.files[0]), f"names/small/{'0' * 64}"}
    assert verify(models, models.manifest(manifest.hash)) == []
    assert not keys(models) & set(collected.keys)


ACTS: dict[str, Callable[[ModelBucket, Path, Manifest], object]] = {
    "push": push,
    "find": lambda models, _folder, _manifest: models.find(Reference("small")),
    "read": lambda models, _folder, manifest: models.read(manifest, manifest.files[0], range(1)),
    "manifest": lambda models, _folder, manifest: models.manifest(manifest.hash),
    "garbage": lambda models, _folder, _manifest: collect_garbage(models, datetime.now(UTC), NOW),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_bucket_without_rights_is_told_by_name(
    act: str,
    proxy: FaultyProxy,
    bucket: str,
    folder: Path,
    manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_server(monkeypatch, proxy.url)
    models = open_models(f"s3://{bucket}/models")
    proxy.always = Respond(403)
    with pytest.raises(StorageRefused, match=r"the model store .* refuses access"):
        ACTS[act](models, folder, manifest)


def test_a_bucket_that_does_not_exist_is_told_so(
    s3: S3Server, folder: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, s3.url)
    with pytest.raises(StorageRefused, match="no such bucket"):
        push(open_models("s3://nobody-made-this/models"), folder, manifest)


@pytest.fixture
def forbidden(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "forbidden"
    folder.mkdir()
    folder.chmod(0o500)
    yield folder
    folder.chmod(0o700)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told_so(
    forbidden: Path, folder: Path, manifest: Manifest
) -> None:
    with pytest.raises(StorageRefused, match="refuses access"):
        push(open_models(forbidden.as_uri()), folder, manifest)


@pytest.mark.parametrize(
    "url", ["", "models", "http://x/y", "s3://", "file://", "file:///", "s3://key:secret@bucket/x"]
)
def test_a_url_that_names_no_store_is_refused_with_examples(url: str) -> None:
    with pytest.raises(InvalidParams, match="give s3://bucket/prefix"):
        open_models(url)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidParams, match="is a file, and a folder is needed"):
        open_models((tmp_path / "file").as_uri())
