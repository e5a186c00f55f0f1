"""Peers that fetch a model together: one read of the bucket for all, and no piece believed unverified."""

import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidModel, InvalidParams, ModelCacheFull
from diffuserve.domain.peers import UNADVISED, PeerAddress, PeerAdvice, Share, is_private
from diffuserve.modelstore.bucket import ModelBucket, open_models
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.libtorrent_swarm import LibtorrentSwarm
from diffuserve.modelstore.manifest import Manifest, ModelFile, Piece
from diffuserve.modelstore.partial import PartialModel
from diffuserve.modelstore.piece_hashes import PIECE_BYTES
from diffuserve.modelstore.publishing import push
from diffuserve.modelstore.store import ModelStore
from diffuserve.modelstore.swarm_download import Together, download_together
from support.file_limits import file_size_limit
from support.stored_models import manifest_of, write_files

SIZES = {
    "model_index.json": 100,
    "text/x.safetensors": 3 * PIECE_BYTES,
    "vae/a.safetensors": 2 * PIECE_BYTES + 9,
    "vae/empty.txt": 0,
}
HOST, LIAR = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "store").as_uri()


@pytest.fixture
def bucket(url: str) -> ModelBucket:
    return open_models(url)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write_files(tmp_path / "files", SIZES)


@pytest.fixture
def manifest(bucket: ModelBucket, files: Path) -> Manifest:
    manifest = manifest_of(files)
    push(bucket, files, manifest)
    return manifest


@pytest.fixture
def swarm() -> Iterator[Callable[..., LibtorrentSwarm]]:
    """Opens swarms of one process each, as it were."""
    opened: list[LibtorrentSwarm] = []

    def open_one(host: str = HOST) -> LibtorrentSwarm:
        opened.append(LibtorrentSwarm(host))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@dataclass
class CountedBucket:
    """A bucket that counts the reads of each piece; with `damage` none of them is sound."""

    bucket: ModelBucket
    damage: bool = False
    place: str = "the bucket"
    reads: Counter[tuple[str, int]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, manifest: Manifest, file: ModelFile, part: range) -> bytes:
        with self._lock:
            self.reads[file.path, part.start] += 1
        content = bytes(self.bucket.read(manifest, file, part))
        return b"x" * len(content) if self.damage else content


def partial_of(folder: Path, manifest: Manifest, there: int = 0, files: Path | None = None) -> PartialModel:
    """Return a model of which the first pieces are there, as `files` has them."""
    partial = PartialModel(folder, manifest)
    for piece in manifest.pieces[:there]:
        assert files is not None
        partial.write(piece, memoryview(content_of(files, piece)))
    return partial


def content_of(files: Path, piece: Piece) -> bytes:
    return (files / piece.file.path).read_bytes()[piece.offset : piece.offset + piece.size]


def assert_whole(folder: Path, files: Path) -> None:
    for path in SIZES:
        assert (folder / path).read_bytes() == (files / path).read_bytes()


def nothing(_num_bytes: int) -> None:
    """Take note of no progress."""


def test_workers_that_start_together_read_each_piece_from_the_bucket_once(
    manifest: Manifest,
    bucket: ModelBucket,
    files: Path,
    tmp_path: Path,
    swarm: Callable[..., LibtorrentSwarm],
) -> None:
    counted, swarms = CountedBucket(bucket), [swarm() for _ in range(3)]
    addresses = tuple(each.address for each in swarms)

    def fetch(number: int) -> None:
        def guide(_manifest: Manifest) -> PeerAdvice:
            return PeerAdvice(addresses, Share(number, 3, 3))

        together = Together(swarms[number], guide, wait_seconds=1_000.0)
        partial = partial_of(tmp_path / str(number), manifest)
        download_together(manifest, partial, counted, together, nothing)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(fetch, range(3)))
    for number in range(3):
        assert_whole(tmp_path / str(number) / "small", files)
    assert set(counted.reads.values()) == {1}
    assert len(counted.reads) == len(manifest.pieces)


def test_the_share_of_a_worker_that_never_came_is_read_by_another(
    manifest: Manifest,
    bucket: ModelBucket,
    files: Path,
    tmp_path: Path,
    swarm: Callable[..., LibtorrentSwarm],
) -> None:
    dead = PeerAddress(HOST, 9)

    def guide(_manifest: Manifest) -> PeerAdvice:
        return PeerAdvice((dead,), Share(0, 2, 2))

    counted, arrived = CountedBucket(bucket), list[int]()
    together = Together(swarm(), guide, wait_seconds=0.3)
    download_together(manifest, partial_of(tmp_path / "a", manifest), counted, together, arrived.append)
    assert_whole(tmp_path / "a" / "small", files)
    assert set(counted.reads.values()) == {1}
    assert sum(arrived) == sum(SIZES.values())


def test_a_worker_that_is_not_advised_yet_waits_longer_before_it_reads(
    manifest: Manifest,
    bucket: ModelBucket,
    files: Path,
    tmp_path: Path,
    swarm: Callable[..., LibtorrentSwarm],
) -> None:
    """Many that start on one machine are named late, and would all read the bucket otherwise."""
    whole = partial_of(tmp_path / "whole", manifest, len(manifest.pieces), files)
    holder = swarm()
    holder.join(manifest, whole.folder, manifest.pieces)
    wait, begun = 0.5, time.monotonic()

    def guide(_manifest: Manifest) -> PeerAdvice:
        is_advised = time.monotonic() - begun > 2 * wait
        return PeerAdvice((holder.address,), Share(1, 1, 1)) if is_advised else UNADVISED

    counted, waiting = CountedBucket(bucket), Together(swarm(), guide, wait_seconds=wait)
    download_together(manifest, partial_of(tmp_path / "a", manifest), counted, waiting, nothing)
    assert_whole(tmp_path / "a" / "small", files)
    assert not counted.reads


def test_a_worker_that_is_never_advised_reads_all(
    manifest: Manifest,
    bucket: ModelBucket,
    files: Path,
    tmp_path: Path,
    swarm: Callable[..., LibtorrentSwarm],
) -> None:
    counted, together = CountedBucket(bucket), Together(swarm(), lambda _: UNADVISED, wait_seconds=0.1)
    download_together(manifest, partial_of(tmp_path / "a", manifest), counted, together, nothing)
    assert_whole(tmp_path / "a" / "small", files)
    assert set(counted.reads.values()) == {1}


def test_a_peer_that_hangs_costs_time_only(
    manifest: Manifest,
    bucket: ModelBucket,
    files: Path,
    tmp_path: Path,
    swarm: Callable[..., LibtorrentSwarm],
) -> None:
    with socket.create_server((HOST, 0)) as hung:  # the kernel accepts, and nobody answers
        advice = PeerAdvice((PeerAddress(HOST, hung.getsockname()[1]),), Share(1, 1, 2))
        counted, together = CountedBucket(bucket), Together(swarm(), lambda _manifest: advice, 0.1)
        download_together(manifest, partial_of(tmp_path / "a", manifest), counted, together, nothing)
    assert_whole(tmp_path / "a" / "small", files)
    assert set(counted.reads.values()) == {1}


def test_a_full_disk_is_told_and_what_arrived_is_kept(
    manifest: Manifest,
    bucket: ModelBucket,
    files: Path,
    tmp_path: Path,
    swarm: Callable[..., LibtorrentSwarm],
) -> None:
    whole = partial_of(tmp_path / "whole", manifest, len(manifest.pieces), files)
    holder = swarm(LIAR)
    holder.join(manifest, whole.folder, manifest.pieces)
    partial, advice = partial_of(tmp_path / "a", manifest), PeerAdvice((holder.address,), Share(1, 1, 2))

    def fetch() -> None:
        download_together(
            manifest, partial, CountedBucket(bucket), Together(swarm(), lambda _: advice, 1_000.0), nothing
        )

    with file_size_limit(2 * PIECE_BYTES), pytest.raises(ModelCacheFull, match="what has arrived is kept"):
        fetch()
    fetch()
    assert_whole(tmp_path / "a" / "small", files)


def test_a_lying_peer_is_found_out_and_costs_time_only(
    manifest: Manifest,
    bucket: ModelBucket,
    files: Path,
    tmp_path: Path,
    swarm: Callable[..., LibtorrentSwarm],
    caplog: pytest.LogCaptureFixture,
) -> None:
    lying = partial_of(tmp_path / "liar", manifest, len(manifest.pieces) - 1, files)
    for path in SIZES:
        (lying.folder / "small" / path).write_bytes(b"x" * SIZES[path])
    liar, honest = swarm(LIAR), swarm()
    given = liar.join(manifest, lying.folder, lying.present)

    def guide(_manifest: Manifest) -> PeerAdvice:
        return PeerAdvice((liar.address,), Share(1, 1, 2))  # nothing is to be read before a wait in vain

    counted = CountedBucket(bucket)
    together = Together(honest, guide, wait_seconds=0.3)
    download_together(manifest, partial_of(tmp_path / "a", manifest), counted, together, nothing)
    assert_whole(tmp_path / "a" / "small", files)
    assert given.num_sent > 0
    assert f"{LIAR} sends what is not as the manifest says" in caplog.text
    assert "a peer sent a piece that is not as the manifest says" in caplog.text


def test_a_download_goes_on_with_the_pieces_that_an_earlier_try_left(
    manifest: Manifest,
    bucket: ModelBucket,
    files: Path,
    tmp_path: Path,
    swarm: Callable[..., LibtorrentSwarm],
) -> None:
    counted, partial = CountedBucket(bucket), partial_of(tmp_path / "a", manifest, 3, files)
    together = Together(swarm(), lambda _manifest: PeerAdvice())
    download_together(manifest, partial, counted, together, nothing)
    assert_whole(tmp_path / "a" / "small", files)
    assert len(counted.reads) == len(manifest.pieces) - 3


def test_a_piece_that_is_damaged_everywhere_is_an_error_that_names_the_place(
    manifest: Manifest, bucket: ModelBucket, tmp_path: Path, swarm: Callable[..., LibtorrentSwarm]
) -> None:
    counted = CountedBucket(bucket, damage=True)
    together = Together(swarm(), lambda _manifest: PeerAdvice())
    with pytest.raises(InvalidModel, match="is not in the bucket as the manifest says"):
        download_together(manifest, partial_of(tmp_path / "a", manifest), counted, together, nothing)


def test_a_model_in_the_cache_is_given_to_others_which_need_no_bucket(
    manifest: Manifest, url: str, files: Path, tmp_path: Path, swarm: Callable[..., LibtorrentSwarm]
) -> None:
    first, second = swarm(), swarm()
    config = ModelStoreConfig(model_store=url, model_cache=tmp_path / "first")
    alone = Together(first, lambda _manifest: PeerAdvice())
    ModelStore(config, together=alone).open("small", lambda _: nothing)
    weights = tmp_path / "store" / "models" / manifest.hash / "small"
    for path in SIZES:
        (weights / path).unlink()

    def guide(_manifest: Manifest) -> PeerAdvice:
        return PeerAdvice((first.address,), Share(1, 1, 2))

    config = ModelStoreConfig(model_store=url, model_cache=tmp_path / "second")
    held = ModelStore(config, together=Together(second, guide)).open("small", lambda _: nothing)
    assert_whole(held.folder, files)


def test_after_each_wait_in_vain_twice_as_many_workers_read_a_piece() -> None:
    def num_readers(num_waits: int) -> int:
        return sum(Share(index, 4, 10).has(7, num_waits) for index in range(10))

    assert [num_readers(num_waits) for num_waits in range(6)] == [1, 2, 3, 5, 8, 10]


def test_each_piece_is_in_one_share() -> None:
    for piece in range(20):
        assert sum(Share(index, 4, 10).has(piece, 0) for index in range(10)) == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "8.8.8.8", "localhost", "224.0.0.1", "::", "2001:db8::1"])
def test_peers_listen_on_private_addresses_alone(host: str) -> None:
    assert not is_private(host)
    with pytest.raises(InvalidParams, match="private network"):
        LibtorrentSwarm(host)


def test_a_second_swarm_of_a_machine_takes_the_next_free_port(swarm: Callable[..., LibtorrentSwarm]) -> None:
    port = swarm().address.port
    second = LibtorrentSwarm(HOST, port)
    assert port < second.address.port <= port + 10
    second.close()


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(InvalidParams, match=r"10\.255\.255\.254"):
        LibtorrentSwarm("10.255.255.254")


def test_without_libtorrent_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libtorrent", None)
    with pytest.raises(InvalidParams, match=r"pip install 'diffuserve\[peers\]'"):
        LibtorrentSwarm(HOST)


def test_a_swarm_sends_no_faster_than_its_limit(
    manifest: Manifest,
    bucket: ModelBucket,
    files: Path,
    tmp_path: Path,
    swarm: Callable[..., LibtorrentSwarm],
) -> None:
    whole = partial_of(tmp_path / "whole", manifest, len(manifest.pieces), files)
    holder = swarm(LIAR)
    given = holder.join(manifest, whole.folder, manifest.pieces)

    def seconds(folder: str) -> float:
        advice = PeerAdvice((holder.address,), Share(1, 1, 2))
        together = Together(swarm(), lambda _manifest: advice, wait_seconds=1_000.0)
        start = time.monotonic()
        download_together(
            manifest, partial_of(tmp_path / folder, manifest), CountedBucket(bucket), together, nothing
        )
        return time.monotonic() - start

    holder.limit_upload(10_000_000)
    assert seconds("slow") >= 0.8 * sum(SIZES.values()) / 10_000_000
    holder.limit_upload(None)
    seconds("fast")
    assert given.num_sent >= 2 * sum(SIZES.values())
