"""Adapters in stores: by content, verified, in a folder and in a bucket."""

import hashlib
import os
import random
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
from obstore.store import ObjectStore

from contract.test_model_bucket import use_server
from diffuserve.domain.codec import adapter_of
from diffuserve.domain.errors import AdapterNotFound, InvalidAdapter
from diffuserve.domain.models.adapter_entry import AdapterEntry
from diffuserve.modelstore.adapters.adapter_bucket import open_adapters
from diffuserve.modelstore.adapters.adapter_layout import blob_key, entry_key
from diffuserve.modelstore.adapters.adapter_store import AdapterStore
from diffuserve.modelstore.bucket import open_place
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.locks import PinnedFile
from support.s3 import S3Server


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return (tmp_path / "store").as_uri()
    server: S3Server = request.getfixturevalue("s3")
    use_server(monkeypatch, server.url)
    return f"s3://{server.create_bucket()}/some/prefix"


@pytest.fixture
def objects(url: str) -> ObjectStore:
    return open_place(url, "adapter_store")[0]


@pytest.fixture
def config(url: str, tmp_path: Path) -> ModelStoreConfig:
    return ModelStoreConfig(model_store=url, model_cache=tmp_path / "cache", adapter_cache_bytes=250_000)


def put(objects: ObjectStore, seed: int, size: int = 100_000) -> str:
    content = random.Random(seed).randbytes(size)
    digest = hashlib.sha256(content).hexdigest()
    obstore.put(objects, blob_key(digest), content)
    return digest


def test_a_file_is_fetched_by_its_content_once(objects: ObjectStore, config: ModelStoreConfig) -> None:
    digest = put(objects, 0)
    path = AdapterStore(config).fetch(digest)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    obstore.delete(objects, blob_key(digest))
    assert AdapterStore(config).fetch(digest) == path


def test_what_is_damaged_or_missing_leaves_nothing(objects: ObjectStore, config: ModelStoreConfig) -> None:
    digest = put(objects, 0)
    obstore.put(objects, blob_key(digest), b"something else")
    with pytest.raises(InvalidAdapter, match="damaged"):
        AdapterStore(config).fetch(digest)
    with pytest.raises(AdapterNotFound, match="no adapter file"):
        AdapterStore(config).fetch("0" * 64)
    assert list(config.adapter_cache.iterdir()) == []


def test_the_least_recently_used_files_make_room(objects: ObjectStore, config: ModelStoreConfig) -> None:
    store, digests = AdapterStore(config), [put(objects, seed) for seed in range(3)]
    for age, digest in enumerate(digests[:2]):
        os.utime(store.fetch(digest), (1_000_000 - age, 1_000_000 - age))
    third = store.fetch(digests[2])
    assert set(config.adapter_cache.iterdir()) == {third, config.adapter_cache / f"{digests[0]}.safetensors"}


def test_what_is_in_use_makes_no_room(objects: ObjectStore, config: ModelStoreConfig) -> None:
    store, digests = AdapterStore(config), [put(objects, seed) for seed in range(4)]
    used = PinnedFile(store.fetch(digests[0]))
    os.utime(used.path, (1_000_000, 1_000_000))
    second = store.fetch(digests[1])
    third = store.fetch(digests[2])
    assert set(config.adapter_cache.iterdir()) == {used.path, third}
    with pytest.raises(FileNotFoundError):
        PinnedFile(second)
    path = used.path
    del used
    os.utime(path, (1_000_000, 1_000_000))
    fourth = store.fetch(digests[3])
    assert set(config.adapter_cache.iterdir()) == {third, fourth}


def test_without_a_store_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(AdapterNotFound, match="--adapter-store"):
        AdapterStore(ModelStoreConfig(model_cache=tmp_path)).fetch("0" * 64)


def entry_of(file: Path, name: str = "ink", tenant: str | None = None) -> AdapterEntry:
    return AdapterEntry(
        name=name,
        tenant=tenant,
        digest=hashlib.sha256(file.read_bytes()).hexdigest(),
        num_bytes=file.stat().st_size,
        families=("flux",),
        rank=4,
        num_layers=2,
        created_at=1.5,
    )


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for seed in range(2):
        (tmp_path / f"{seed}.safetensors").write_bytes(random.Random(seed).randbytes(1_000 + seed))
    return [tmp_path / f"{seed}.safetensors" for seed in range(2)]


def test_a_name_is_its_owners_alone(url: str, files: list[Path]) -> None:
    bucket = open_adapters(url)
    public = entry_of(files[0])
    own, others = entry_of(files[1], tenant="ada/../x"), entry_of(files[1], "their", tenant="bob")
    for entry, file in ((public, files[0]), (own, files[1]), (others, files[1])):
        bucket.publish(entry, file)
    assert bucket.entries(None) == [public]
    assert bucket.entries("ada/../x") == [own]
    assert bucket.all_entries() == [public, own, others]
    assert (bucket.find(None, "ink"), bucket.find("ada/../x", "ink")) == (public, own)
    assert bucket.find("carl", "ink") is bucket.find(None, "../ink") is None
    with pytest.raises(AdapterNotFound, match="did you mean 'ink'"):
        bucket.get(None, "inc")


def test_a_file_outlives_its_name_for_a_while(url: str, config: ModelStoreConfig, files: list[Path]) -> None:
    bucket, long = open_adapters(url), timedelta(seconds=-60)
    first, second, another = entry_of(files[0]), entry_of(files[1]), entry_of(files[1], tenant="ada")
    bucket.publish(first, files[0])
    bucket.publish(second, files[1])  # the name means another file now
    bucket.publish(another, files[1])
    assert bucket.find(None, "ink") == second
    bucket.remove(second)
    assert bucket.entries(None) == []
    assert bucket.sweep() == 0
    assert AdapterStore(config).fetch(first.digest).read_bytes() == files[0].read_bytes()
    assert bucket.sweep(kept=long) == 1
    assert (bucket.has_blob(first.digest), bucket.has_blob(second.digest)) == (False, True)
    bucket.remove(another)
    assert bucket.sweep(kept=long) == 1
    assert not bucket.has_blob(second.digest)


def test_a_file_that_changes_gets_no_name(url: str, files: list[Path]) -> None:
    bucket, entry = open_adapters(url), entry_of(files[0])
    files[0].write_bytes(b"another")
    with pytest.raises(InvalidAdapter, match="was changed"):
        bucket.publish(entry, files[0])
    assert bucket.entries(None) == []
    assert not bucket.has_blob(entry.digest)


@pytest.mark.parametrize("content", [b"{}", b"no json", b"\0" * 20_000])
def test_what_is_no_entry_is_left_out(
    url: str, objects: ObjectStore, files: list[Path], content: bytes
) -> None:
    bucket, entry = open_adapters(url), entry_of(files[0])
    bucket.publish(entry, files[0])
    for stranger in (content, adapter_of(AdapterEntry).dump_json(entry)):  # of another name
        obstore.put(objects, entry_key(None, "strange"), stranger)
        assert bucket.entries(None) == [entry]
        assert bucket.find(None, "strange") is None
