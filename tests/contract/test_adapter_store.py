"""Adapters in stores: by content, verified, in a folder and in a bucket."""

import hashlib
import os
import random
from pathlib import Path

import obstore
import pytest
from obstore.store import ObjectStore

from contract.test_model_bucket import use_server
from diffuserve.domain.errors import AdapterNotFound, InvalidAdapter
from diffuserve.modelstore.adapters.adapter_store import AdapterStore
from diffuserve.modelstore.adapters.entry import blob_key
from diffuserve.modelstore.bucket import open_place
from diffuserve.modelstore.config import ModelStoreConfig
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


def test_without_a_store_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(AdapterNotFound, match="--adapter-store"):
        AdapterStore(ModelStoreConfig(model_cache=tmp_path)).fetch("0" * 64)
