"""The cache of models on a machine: fetched once, verified, continued after a kill, and bounded."""

import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from diffuserve.domain.errors import (
    InvalidModel,
    InvalidParams,
    ModelCacheFull,
    ModelNotFound,
    ServerUnavailable,
)
from diffuserve.modelstore import cache
from diffuserve.modelstore.bucket import ModelBucket, open_models
from diffuserve.modelstore.cache import HeldModel, ModelCache
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.download import download
from diffuserve.modelstore.layout import file_key
from diffuserve.modelstore.locks import FileLock
from diffuserve.modelstore.manifest import Manifest, ModelFile
from diffuserve.modelstore.partial import PartialModel
from diffuserve.modelstore.piece_hashes import PIECE_BYTES
from diffuserve.modelstore.publishing import push, remove
from diffuserve.modelstore.store import ModelStore, is_stored
from support.file_limits import file_size_limit
from support.s3 import S3Server
from support.stored_models import manifest_of, write_files
from support.waiting import HANG_SECONDS

SIZES = {
    "model_index.json": 100,
    "text/x.safetensors": 3 * PIECE_BYTES,
    "vae/a.safetensors": 2 * PIECE_BYTES + 9,
    "vae/empty.txt": 0,
}
NUM_BYTES = sum(SIZES.values())


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "store").as_uri()


@pytest.fixture
def bucket(url: str) -> ModelBucket:
    return open_models(url)


@pytest.fixture
def publish(bucket: ModelBucket, tmp_path: Path) -> Callable[..., Manifest]:
    """Publishes a model of its own bytes under a name."""

    def publish(name: str = "small", seed: int = 0) -> Manifest:
        folder = write_files(tmp_path / f"{name}-{seed}", SIZES, seed)
        manifest = manifest_of(folder, name)
        push(bucket, folder, manifest)
        return manifest

    return publish


@pytest.fixture
def manifest(publish: Callable[..., Manifest]) -> Manifest:
    return publish()


class Watch:
    """Counts what arrives."""

    def __init__(self) -> None:
        self.fetched: list[str] = []
        self.num_bytes = 0
        self._lock = threading.Lock()

    def __call__(self, manifest: Manifest) -> Callable[[int], None]:
        self.fetched.append(manifest.name)
        return self._count

    def _count(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes


class Peer:
    """A source of pieces that keeps account of them; `change` is what it makes of them."""

    place = "a peer"

    def __init__(
        self, bucket: ModelBucket, change: Callable[[bytes], bytes] = lambda content: content
    ) -> None:
        self.num_bytes = 0
        self._bucket, self._change, self._lock = bucket, change, threading.Lock()

    def read(self, manifest: Manifest, file: ModelFile, part: range) -> bytes:
        with self._lock:
            self.num_bytes += len(part)
        return self._change(bytes(self._bucket.read(manifest, file, part)))


@pytest.fixture
def config(url: str, tmp_path: Path) -> ModelStoreConfig:
    return ModelStoreConfig(model_store=url, model_cache=tmp_path / "cache")


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_model_is_fetched_once_and_then_found(
    config: ModelStoreConfig, manifest: Manifest, tmp_path: Path
) -> None:
    watch = Watch()
    for name in ("small", f"small@{manifest.hash}", f"small@{manifest.hash[:12]}"):
        held = ModelStore(config).open(name, watch)
        assert content_of(held.folder) == content_of(tmp_path / "small-0")
        assert held.folder.name == "small"
        held.release()
    assert (watch.fetched, watch.num_bytes) == (["small"], NUM_BYTES)


def test_a_cached_model_needs_no_store(
    config: ModelStoreConfig, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    ModelStore(config).open("small", Watch()).release()

    def fail(*_: object) -> None:
        raise ServerUnavailable("the model store is unavailable")

    monkeypatch.setattr(ModelBucket, "objects", fail)
    assert ModelStore(config).open("small", Watch()).manifest == manifest
    assert ModelStore(config).open(f"small@{manifest.hash}", Watch()).manifest == manifest
    for name in ("other", "small@000000000000"):
        with pytest.raises(ServerUnavailable):
            ModelStore(config).open(name, Watch())


def test_a_name_follows_the_newest_version_and_a_hash_stays(
    config: ModelStoreConfig, publish: Callable[..., Manifest]
) -> None:
    first = publish(seed=0)
    ModelStore(config).open("small", Watch()).release()
    second = publish(seed=1)
    assert ModelStore(config).open("small", Watch()).manifest == second
    assert ModelStore(config).open(f"small@{first.hash}", Watch()).manifest == first


def start(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "support.fetch_program", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def lines_until(process: "subprocess.Popen[str]", word: str) -> list[list[str]]:
    """Return what a process says, up to a line that begins with `word`."""
    assert process.stdout is not None
    lines = list[list[str]]()
    for line in process.stdout:
        lines.append(line.split())
        if lines[-1][0] == word:
            return lines
    raise AssertionError(f"it ended after {lines}")


@contextmanager
def ended(*processes: "subprocess.Popen[str]") -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("swarm", [(), ("127.0.0.1",)], ids=["alone", "in-a-swarm"])
def test_a_killed_download_continues_with_what_is_missing(
    config: ModelStoreConfig, bucket: ModelBucket, manifest: Manifest, tmp_path: Path, swarm: tuple[str, ...]
) -> None:
    process = start(config.model_store, config.model_cache, "small", "", 2, *swarm)
    with ended(process):
        lines_until(process, "bytes")
        arrived = int(lines_until(process, "bytes")[-1][1])
        process.kill()
        process.wait()
    peer = Peer(bucket)
    held = ModelStore(config, [peer]).open("small", watch := Watch())
    assert content_of(held.folder) == content_of(tmp_path / "small-0")
    assert 0 < peer.num_bytes <= NUM_BYTES - arrived
    assert watch.num_bytes == NUM_BYTES, "what was there counts as progress"


def test_a_piece_that_a_crash_has_spoilt_is_fetched_again(
    config: ModelStoreConfig, bucket: ModelBucket, manifest: Manifest, tmp_path: Path
) -> None:
    process = start(config.model_store, config.model_cache, "small", "", 3)
    with ended(process):
        [lines_until(process, "bytes") for _ in range(3)]
        process.kill()
        process.wait()
    for file in (config.model_cache / "partial" / manifest.hash / "small").rglob("*.safetensors"):
        file.write_bytes(bytes(file.stat().st_size))
    held = ModelStore(config).open("small", Watch())
    assert content_of(held.folder) == content_of(tmp_path / "small-0")


def test_workers_of_one_machine_fetch_a_model_once(config: ModelStoreConfig, manifest: Manifest) -> None:
    processes = [start(config.model_store, config.model_cache, "small") for _ in range(3)]
    with ended(*processes):
        said = [lines_until(process, "held") for process in processes]
    arrived = sum(int(line[1]) for lines in said for line in lines if line[0] == "bytes")
    assert arrived == NUM_BYTES
    assert len({lines[-1][1] for lines in said}) == 1


def test_the_least_recently_used_model_gives_way_and_none_in_use(
    config: ModelStoreConfig, publish: Callable[..., Manifest]
) -> None:
    for name in ("a", "b", "c", "d"):
        publish(name)
    bounded = ModelStoreConfig(
        model_store=config.model_store, model_cache=config.model_cache, model_cache_bytes=5 * NUM_BYTES // 2
    )

    def cached() -> set[str]:
        return {path.parent.name for path in config.model_cache.glob("models/*/*/model_index.json")}

    store = ModelStore(bounded)
    user = start(bounded.model_store, bounded.model_cache, "a")
    with ended(user):
        lines_until(user, "held")  # the oldest, and in use
        store.open("b", Watch()).release()
        store.open("c", Watch()).release()
        assert cached() == {"a", "c"}
        c, d = store.open("c", Watch()), "d"
        with pytest.raises(ModelCacheFull, match=r"raise --model-cache-bytes"):
            store.open(d, Watch())
        assert cached() == {"a", "c"}
        c.release()
        store.open(d, Watch()).release()
        assert cached() == {"a", "d"}
    store.open("c", Watch())
    assert cached() == {"c", "d"}, "a process that was killed uses nothing"


def test_a_model_larger_than_the_limit_is_refused_before_anything_is_removed(
    config: ModelStoreConfig, publish: Callable[..., Manifest]
) -> None:
    publish("a")
    ModelStore(config).open("a", Watch()).release()
    publish("b")
    small = ModelStoreConfig(
        model_store=config.model_store, model_cache=config.model_cache, model_cache_bytes=NUM_BYTES - 1
    )
    with pytest.raises(ModelCacheFull, match="a limit of"):
        ModelStore(small).open("b", Watch())
    assert ModelStore(small).open("a", watch := Watch())
    assert watch.fetched == []


def test_a_disk_that_is_full_halfway_is_told_and_what_has_arrived_is_kept(
    config: ModelStoreConfig, bucket: ModelBucket, manifest: Manifest
) -> None:
    def fill(content: bytes) -> bytes:
        """Fill the disk once the files have their sizes."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * PIECE_BYTES, resource.RLIM_INFINITY))
        return content

    now = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    with file_size_limit(now), pytest.raises(ModelCacheFull, match="what has arrived is kept"):
        ModelStore(config, [Peer(bucket, fill)]).open("small", Watch())
    assert list(config.model_cache.glob("models/*")) == []
    peer = Peer(bucket)
    ModelStore(config, [peer]).open("small", Watch())
    assert peer.num_bytes < NUM_BYTES


def test_a_disk_without_any_room_is_told(config: ModelStoreConfig, manifest: Manifest) -> None:
    with file_size_limit(PIECE_BYTES), pytest.raises(ModelCacheFull, match="no space is left"):
        ModelStore(config).open("small", Watch())


def test_a_disk_that_is_too_small_is_told_before_the_download(
    config: ModelStoreConfig, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1_000))
    with pytest.raises(ModelCacheFull, match="1,000 bytes free on its disk"):
        ModelStore(config).open("small", watch := Watch())
    assert watch.fetched == []
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1 << 40))
    ModelStore(config).open("small", Watch())


def test_a_lying_source_costs_time_only(
    config: ModelStoreConfig, bucket: ModelBucket, manifest: Manifest, tmp_path: Path
) -> None:
    liars = [
        Peer(bucket, lambda content: bytes(len(content))),
        Peer(bucket, lambda content: content[:PIECE_BYTES]),
        Peer(bucket, lambda content: b""),
    ]
    held = ModelStore(config, liars).open("small", watch := Watch())
    assert content_of(held.folder) == content_of(tmp_path / "small-0")
    assert watch.num_bytes == NUM_BYTES


def test_a_source_that_fails_is_passed_over(
    config: ModelStoreConfig, bucket: ModelBucket, manifest: Manifest
) -> None:
    def fail(_: bytes) -> bytes:
        raise ServerUnavailable("the peer has left")

    assert ModelStore(config, [Peer(bucket, fail)]).open("small", Watch()).manifest == manifest


def test_damage_in_the_bucket_is_told_and_never_used(
    config: ModelStoreConfig, bucket: ModelBucket, manifest: Manifest
) -> None:
    bucket.put(file_key(manifest, manifest.files[1]), bytes(3 * PIECE_BYTES))
    with pytest.raises(
        InvalidModel, match=r"text/x\.safetensors from byte .* is not in .* as the manifest says"
    ):
        ModelStore(config).open("small", Watch())
    assert list(config.model_cache.glob("models/*")) == []


def test_a_model_that_is_removed_while_it_is_fetched_fails_alone(
    config: ModelStoreConfig, bucket: ModelBucket, publish: Callable[..., Manifest]
) -> None:
    publish("small")
    other = publish("other")
    [version] = bucket.versions("small")

    def take_away(_: bytes) -> bytes:
        remove(bucket, version)
        raise ServerUnavailable("the peer has left")

    store = ModelStore(config, [Peer(bucket, take_away)])
    with pytest.raises(ModelNotFound, match="was the model removed"):
        store.open("small", Watch())
    assert ModelStore(config).open("other", Watch()).manifest == other


def test_a_model_that_is_removed_stays_in_the_caches_that_have_it(
    config: ModelStoreConfig, bucket: ModelBucket, manifest: Manifest
) -> None:
    ModelStore(config).open("small", Watch()).release()
    remove(bucket, *bucket.versions("small"))
    assert ModelStore(config).open(f"small@{manifest.hash}", Watch()).manifest == manifest
    with pytest.raises(ModelNotFound):
        ModelStore(config).open("small", Watch())


def test_a_cached_file_that_was_cut_is_fetched_anew(
    config: ModelStoreConfig, manifest: Manifest, tmp_path: Path
) -> None:
    held = ModelStore(config).open("small", Watch())
    os.truncate(held.folder / "vae/a.safetensors", 5)
    held.release()
    again = ModelStore(config).open("small", watch := Watch())
    assert watch.fetched == ["small"]
    assert content_of(again.folder) == content_of(tmp_path / "small-0")


@pytest.fixture
def volume(config: ModelStoreConfig, tmp_path: Path) -> ModelStoreConfig:
    """The store itself as a volume, beside a bucket that has nothing."""
    return ModelStoreConfig(
        model_store=(tmp_path / "empty").as_uri(),
        model_cache=config.model_cache,
        model_volume=tmp_path / "store",
    )


def held_by(store: ModelStoreConfig, name: str, watch: Watch) -> HeldModel:
    return ModelStore(store).open(name, watch)


def test_a_volume_is_read_in_place(volume: ModelStoreConfig, manifest: Manifest, tmp_path: Path) -> None:
    alone = ModelStoreConfig(model_cache=volume.model_cache, model_volume=volume.model_volume)
    watch = Watch()
    for config, name in ((volume, f"small@{manifest.hash}"), (alone, "small")):
        held = held_by(config, name, watch)
        assert held.folder == tmp_path / "store" / "models" / manifest.hash / "small"
    assert watch.fetched == []
    assert not list(volume.model_cache.glob("models/*"))


def test_the_cache_that_one_fills_is_a_volume_for_others(
    config: ModelStoreConfig, manifest: Manifest, tmp_path: Path
) -> None:
    held_by(config, "small", Watch()).release()
    others = ModelStoreConfig(model_cache=tmp_path / "unused", model_volume=config.model_cache)
    held = held_by(others, "small", watch := Watch())
    assert held.folder == config.model_cache / "models" / manifest.hash / "small"
    assert watch.fetched == []


def test_a_volume_with_a_model_in_part_is_passed_over(
    config: ModelStoreConfig, manifest: Manifest, tmp_path: Path
) -> None:
    part = tmp_path / "volume" / "models" / manifest.hash
    part.mkdir(parents=True)
    (part / "manifest.json").write_bytes(manifest.to_json())
    both = ModelStoreConfig(
        model_store=config.model_store, model_cache=config.model_cache, model_volume=tmp_path / "volume"
    )
    assert held_by(both, "small", watch := Watch()).manifest == manifest
    assert watch.fetched == ["small"]


def test_a_volume_that_is_not_mounted_is_told(config: ModelStoreConfig, tmp_path: Path) -> None:
    alone = ModelStoreConfig(model_cache=config.model_cache, model_volume=tmp_path / "nowhere")
    with pytest.raises(InvalidParams, match="is the volume mounted there"):
        held_by(alone, "small", Watch())


def test_a_cache_that_cannot_be_used_is_told(config: ModelStoreConfig, manifest: Manifest) -> None:
    config.model_cache.write_text("a file")
    with pytest.raises(InvalidParams, match=r"model_cache=.* is a file, and a folder is needed"):
        ModelStore(config).open("small", Watch())


@pytest.mark.parametrize(
    ("name", "is_one"), [("small", True), ("tiny-flux", False), ("owner/name", False), ("/tmp", False)]
)
def test_a_store_answers_for_names_that_nothing_else_has(
    config: ModelStoreConfig, name: str, is_one: bool
) -> None:
    assert is_stored(name, config) is is_one
    assert not is_stored(name, ModelStoreConfig())


def test_a_model_is_fetched_from_a_bucket_of_s3(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"ENDPOINT_URL": s3.url, "REGION": "us-east-1", "ALLOW_HTTP": "true"}
    for name, value in (said | {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    url = f"s3://{s3.create_bucket()}/models"
    folder = write_files(tmp_path / "model", SIZES)
    push(open_models(url), folder, manifest_of(folder))
    config = ModelStoreConfig(model_store=url, model_cache=tmp_path / "cache")
    held = ModelStore(config).open("small", watch := Watch())
    assert content_of(held.folder) == content_of(folder)
    assert watch.num_bytes == NUM_BYTES


def test_a_manifest_that_claims_the_hash_of_another_file_is_refused(
    bucket: ModelBucket, manifest: Manifest, config: ModelStoreConfig, tmp_path: Path
) -> None:
    """Every piece is as the manifest says; the hash of the whole is another model's."""
    folder = write_files(tmp_path / "evil", SIZES, seed=1)
    own = manifest_of(folder, "evil")
    both = zip(own.files, manifest.files, strict=True)
    liar = replace(own, files=tuple(replace(file, sha256=good.sha256) for file, good in both))
    for file in liar.files:
        bucket.put(file_key(liar, file), (folder / file.path).read_bytes())
    bucket.publish(liar)
    store = ModelStore(config)
    with pytest.raises(InvalidModel, match=r"evil@.*model_index.json has the hash .* push it again"):
        store.open("evil", Watch())
    assert not list((tmp_path / "cache" / "models").glob("*"))
    again = Watch()
    with pytest.raises(InvalidModel):
        store.open("evil", again)
    assert store.open("small", Watch()).manifest == manifest


@pytest.mark.parametrize(
    "spoil", [lambda folder: folder.chmod(0o777), lambda folder: os.chown(folder, 12_345, -1)]
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of others")
def test_a_model_that_another_user_may_have_written_is_not_used(
    spoil: Callable[[Path], None], manifest: Manifest, config: ModelStoreConfig
) -> None:
    held = ModelStore(config).open("small", Watch())
    held.release()
    spoil(held.folder.parent)
    with pytest.raises(InvalidParams, match=r"model_cache=.*give a folder of your own"):
        ModelStore(config).open("small", Watch())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of others")
def test_a_prepared_copy_that_another_user_may_have_written_is_not_used(config: ModelStoreConfig) -> None:
    models = ModelCache(config.model_cache)
    made = models.make_copy("a" * 64, "a copy", lambda folder, _: None)
    made.release()
    os.chown(made.folder, 12_345, -1)
    with pytest.raises(InvalidParams, match="belongs to user 12345"):
        models.hold_copy("a" * 64)


def test_a_download_that_was_stopped_stops_nobody_else(
    config: ModelStoreConfig,
    bucket: ModelBucket,
    manifest: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that goes on after all finds the model that another one has fetched beside it."""
    monkeypatch.setattr(cache, "STALLED_SECONDS", 0.5)
    begun, go_on, partial = threading.Event(), threading.Event(), config.model_cache / "partial"

    def fetch(model: PartialModel) -> None:
        begun.set()
        assert go_on.wait(HANG_SECONDS)
        download(manifest, model, [bucket], lambda _: None)

    with ThreadPoolExecutor(1) as threads:
        stopped = threads.submit(ModelCache(config.model_cache).fetch, manifest, fetch)
        assert begun.wait(HANG_SECONDS)
        try:
            held = ModelStore(config).open("small", Watch())
            assert content_of(held.folder) == content_of(tmp_path / "small-0")
            assert [path.name for path in partial.iterdir()] == [manifest.hash]
        finally:
            go_on.set()
        assert stopped.result(HANG_SECONDS).folder == held.folder
    assert not list(partial.iterdir())
    assert content_of(held.folder) == content_of(tmp_path / "small-0")


def test_a_slow_download_is_waited_for(
    config: ModelStoreConfig, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "STALLED_SECONDS", 2.0)
    turn = FileLock(config.model_cache / "locks" / f"{manifest.hash}.fetching")
    turn.take()
    (slow := config.model_cache / "partial" / manifest.hash / "file").parent.mkdir(parents=True)

    def arrive() -> None:
        for number in range(20):
            slow.write_bytes(bytes(number))
            time.sleep(0.2)
        turn.release()

    arriving = threading.Thread(target=arrive)
    arriving.start()
    ModelStore(config).open("small", Watch())
    assert not arriving.is_alive(), "it has waited to the end"
    arriving.join()
