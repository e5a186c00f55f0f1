"""Prepared copies in the cache of models: made once, whole or not at all, and the first to give way."""

import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from diffuserve.domain.errors import ModelCacheFull
from diffuserve.modelstore.bucket import open_models
from diffuserve.modelstore.cache import ModelCache, WriteCopy
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.manifest import Manifest
from diffuserve.modelstore.publishing import push
from diffuserve.modelstore.store import ModelStore
from support.stored_models import manifest_of, write_files
from support.waiting import HANG_SECONDS

NUM_BYTES = 3_000_000


@pytest.fixture
def config(tmp_path: Path) -> ModelStoreConfig:
    return ModelStoreConfig(model_store=(tmp_path / "store").as_uri(), model_cache=tmp_path / "cache")


def publish(config: ModelStoreConfig, tmp_path: Path, name: str) -> None:
    """Publish a model of `NUM_BYTES`."""
    assert config.model_store is not None
    sizes = {"model_index.json": 100, "text/x.safetensors": NUM_BYTES - 100}
    folder = write_files(tmp_path / name, sizes)
    push(open_models(config.model_store), folder, manifest_of(folder, name))


def ignored(_manifest: Manifest) -> Callable[[int], None]:
    """Take no interest in what arrives."""
    return lambda _num_bytes: None


@pytest.fixture
def bounded(config: ModelStoreConfig) -> ModelCache:
    """A cache for a model and a copy of half its size."""
    return ModelCache(config.model_cache, NUM_BYTES * 3 // 2)


def writer(num_bytes: int) -> WriteCopy:
    """Write a copy of so many bytes."""

    def write(folder: Path, make_room: Callable[[int], None]) -> None:
        make_room(num_bytes)
        (folder / "x").write_bytes(bytes(num_bytes))

    return write


def fail(_folder: Path, _make_room: Callable[[int], None]) -> None:
    raise AssertionError("the copy is there already")


def test_a_copy_is_made_once_and_then_found(bounded: ModelCache) -> None:
    assert bounded.hold_copy("k") is None
    made = bounded.make_copy("k", "a copy", writer(10))
    assert (made.folder / "x").read_bytes() == bytes(10)
    assert bounded.make_copy("k", "a copy", fail).folder == made.folder
    found = bounded.hold_copy("k")
    assert found is not None
    assert found.folder == made.folder


def test_two_that_want_a_copy_at_once_make_one(bounded: ModelCache) -> None:
    written = list[int]()

    def write(folder: Path, make_room: Callable[[int], None]) -> None:
        written.append(threading.get_ident())
        writer(10)(folder, make_room)

    threads = [threading.Thread(target=bounded.make_copy, args=("k", "a copy", write)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert len(written) == 1


def test_copies_give_way_to_models_and_to_copies_and_models_to_no_copy(
    config: ModelStoreConfig, tmp_path: Path, bounded: ModelCache
) -> None:
    publish(config, tmp_path, "a")
    publish(config, tmp_path, "b")
    store = ModelStore(replace(config, model_cache_bytes=NUM_BYTES * 3 // 2))
    store.open("a", ignored).release()
    bounded.make_copy("old", "a copy", writer(NUM_BYTES // 3)).release()
    bounded.make_copy("new", "a copy", writer(NUM_BYTES // 3)).release()
    assert bounded.hold_copy("old") is None
    with pytest.raises(ModelCacheFull, match="a large copy has"):
        bounded.make_copy("large", "a large copy", writer(NUM_BYTES))
    assert list(config.model_cache.glob("models/*/a/text/x.safetensors"))
    held = bounded.hold_copy("new")
    assert held is not None
    store.open("b", ignored).release()
    assert held.folder.is_dir(), "a copy in use stays"
    held.release()
    publish(config, tmp_path, "a")
    bounded.make_copy("k", "a copy", writer(NUM_BYTES // 3)).release()
    store.open("a", ignored)
    assert bounded.hold_copy("new") is None


@pytest.mark.parametrize("exception", [OSError(errno.ENOSPC, "no space"), RuntimeError("killed")])
def test_nothing_is_left_of_a_copy_that_broke_off(bounded: ModelCache, exception: Exception) -> None:
    def write(folder: Path, make_room: Callable[[int], None]) -> None:
        writer(10)(folder, make_room)
        raise exception

    expected = ModelCacheFull if isinstance(exception, OSError) else RuntimeError
    with pytest.raises(expected) as raised:
        bounded.make_copy("k", "a copy", write)
    assert "is kept" not in str(raised.value)
    assert bounded.hold_copy("k") is None
    assert bounded.make_copy("k", "a copy", writer(10))


def test_a_copy_is_found_where_nobody_may_write(bounded: ModelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded.make_copy("k", "a copy", writer(10)).release()

    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("os.open", refuse)
    held = bounded.hold_copy("k")
    assert held is not None
    held.release()
