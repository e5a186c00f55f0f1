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
from diffuserve.domain.workers.peers import UNADVISED, PeerAddress, PeerAdvice, Share, is_private
from diffuserve.modelstore.bucket import ModelBucket, open_models
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.libtorrent_swarm import LibtorrentSwarm, LibtorrentTransfer
from diffuserve.modelstore.manifest import Manifest, ModelFile, Piece
from diffuserve.modelstore.partial import PartialModel
from diffuserve.modelstore.piece_hashes import PIECE_BYTES
from diffuserve.modelstore.publishing import push
from diffuserve.modelstore.store import ModelStore
from diffuserve.modelstore.swarm_download import Guide, SharedDownload, download_together
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


@pytest.fixture
def fetch(
    manifest: Manifest,
    bucket: ModelBucket,
    files: Path,
    tmp_path: Path,
    swarm: Callable[..., LibtorrentSwarm],
) -> Callable[..., CountedBucket]:
    """Fetches the model into a folder, expects it to be whole, and returns the bucket with its counts.

    `advice` is all that the control plane says, or the guide that asks it.
    """

    def fetch(
        advice: PeerAdvice | Guide,
        wait_seconds: float = 1_000.0,
        folder: str = "a",
        by: LibtorrentSwarm | None = None,
        counted: CountedBucket | None = None,
        report: Callable[[int], None] = nothing,
    ) -> CountedBucket:
        guide = (lambda _: advice) if isinstance(advice, PeerAdvice) else advice
        counted, together = (
            counted or CountedBucket(bucket),
            SharedDownload(by or swarm(), guide, wait_seconds),
        )
        download_together(manifest, PartialModel(tmp_path / folder, manifest), counted, together, report)
        assert_whole(tmp_path / folder / "small", files)
        return counted

    return fetch


@pytest.fixture
def holder(
    manifest: Manifest, files: Path, tmp_path: Path, swarm: Callable[..., LibtorrentSwarm]
) -> tuple[LibtorrentSwarm, LibtorrentTransfer]:
    """Return a swarm that has the whole model, and its transfer."""
    whole, holder = partial_of(tmp_path / "whole", manifest, len(manifest.pieces), files), swarm(LIAR)
    return holder, holder.join(manifest, whole.folder, manifest.pieces)


def receiving(*peers: PeerAddress) -> PeerAdvice:
    """Return the advice to read nothing before a wait in vain."""
    return PeerAdvice(peers, Share(1, 1, 2))


def test_workers_that_start_together_read_each_piece_from_the_bucket_once(
    manifest: Manifest,
    bucket: ModelBucket,
    fetch: Callable[..., CountedBucket],
    swarm: Callable[..., LibtorrentSwarm],
) -> None:
    counted, swarms = CountedBucket(bucket), [swarm() for _ in range(3)]
    addresses = tuple(each.address for each in swarms)

    def fetch_share(number: int) -> None:
        advice = PeerAdvice(addresses, Share(number, 3, 3))
        fetch(advice, folder=str(number), by=swarms[number], counted=counted)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(fetch_share, range(3)))
    assert set(counted.reads.values()) == {1}
    assert len(counted.reads) == len(manifest.pieces)


def test_the_share_of_a_worker_that_never_came_is_read_by_another(
    fetch: Callable[..., CountedBucket],
) -> None:
    arrived = list[int]()
    advice = PeerAdvice((PeerAddress(HOST, 9),), Share(0, 2, 2))
    counted = fetch(advice, wait_seconds=0.3, report=arrived.append)
    assert set(counted.reads.values()) == {1}
    assert sum(arrived) == sum(SIZES.values())


def test_a_worker_that_is_not_advised_yet_waits_longer_before_it_reads(
    fetch: Callable[..., CountedBucket], holder: tuple[LibtorrentSwarm, LibtorrentTransfer]
) -> None:
    """Many that start on one machine are named late, and would all read the bucket otherwise."""
    wait, begun = 0.5, time.monotonic()

    def guide(_manifest: Manifest) -> PeerAdvice:
        is_advised = time.monotonic() - begun > 2 * wait
        return PeerAdvice((holder[0].address,), Share(1, 1, 1)) if is_advised else UNADVISED

    assert not fetch(guide, wait_seconds=wait).reads


def test_a_worker_that_is_never_advised_reads_all(fetch: Callable[..., CountedBucket]) -> None:
    assert set(fetch(UNADVISED, wait_seconds=0.1).reads.values()) == {1}


def test_a_peer_that_hangs_costs_time_only(fetch: Callable[..., CountedBucket]) -> None:
    with socket.create_server((HOST, 0)) as hung:  # the kernel accepts, and nobody answers
        counted = fetch(receiving(PeerAddress(HOST, hung.getsockname()[1])), wait_seconds=0.1)
    assert set(counted.reads.values()) == {1}


def test_a_full_disk_is_told_and_what_arrived_is_kept(
    manifest: Manifest,
    tmp_path: Path,
    fetch: Callable[..., CountedBucket],
    holder: tuple[LibtorrentSwarm, LibtorrentTransfer],
) -> None:
    advice = receiving(holder[0].address)
    partial_of(tmp_path / "a", manifest)  # its files have their sizes before the disk is full
    with file_size_limit(2 * PIECE_BYTES), pytest.raises(ModelCacheFull, match="what has arrived is kept"):
        fetch(advice)
    fetch(advice)


def test_a_lying_peer_is_found_out_and_costs_time_only(
    manifest: Manifest,
    files: Path,
    tmp_path: Path,
    fetch: Callable[..., CountedBucket],
    swarm: Callable[..., LibtorrentSwarm],
    caplog: pytest.LogCaptureFixture,
) -> None:
    lying = partial_of(tmp_path / "liar", manifest, len(manifest.pieces) - 1, files)
    for path in SIZES:
        (lying.folder / "small" / path).write_bytes(b"x" * SIZES[path])
    liar = swarm(LIAR)
    given = liar.join(manifest, lying.folder, lying.present)
    fetch(receiving(liar.address), wait_seconds=0.3)
    assert given.num_sent > 0
    assert f"{LIAR} sends what is not as the manifest says" in caplog.text
    assert "a peer sent a piece that is not as the manifest says" in caplog.text


def test_a_download_goes_on_with_the_pieces_that_an_earlier_try_left(
    manifest: Manifest, files: Path, tmp_path: Path, fetch: Callable[..., CountedBucket]
) -> None:
    partial_of(tmp_path / "a", manifest, 3, files)
    assert len(fetch(PeerAdvice()).reads) == len(manifest.pieces) - 3


def test_a_piece_that_is_damaged_everywhere_is_an_error_that_names_the_place(
    bucket: ModelBucket, fetch: Callable[..., CountedBucket]
) -> None:
    with pytest.raises(InvalidModel, match="is not in the bucket as the manifest says"):
        fetch(PeerAdvice(), counted=CountedBucket(bucket, damage=True))


def test_a_model_in_the_cache_is_given_to_others_which_need_no_bucket(
    manifest: Manifest, url: str, files: Path, tmp_path: Path, swarm: Callable[..., LibtorrentSwarm]
) -> None:
    first, second = swarm(), swarm()
    config = ModelStoreConfig(model_store=url, model_cache=tmp_path / "first")
    alone = SharedDownload(first, lambda _manifest: PeerAdvice())
    ModelStore(config, together=alone).open("small", lambda _: nothing)
    weights = tmp_path / "store" / "models" / manifest.hash / "small"
    for path in SIZES:
        (weights / path).unlink()

    config = ModelStoreConfig(model_store=url, model_cache=tmp_path / "second")
    together = SharedDownload(second, lambda _manifest: receiving(first.address))
    held = ModelStore(config, together=together).open("small", lambda _: nothing)
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
    fetch: Callable[..., CountedBucket], holder: tuple[LibtorrentSwarm, LibtorrentTransfer]
) -> None:
    giving, given = holder

    def seconds(folder: str) -> float:
        start = time.monotonic()
        fetch(receiving(giving.address), folder=folder)
        return time.monotonic() - start

    giving.limit_upload(10_000_000)
    assert seconds("slow") >= 0.8 * sum(SIZES.values()) / 10_000_000
    giving.limit_upload(None)
    seconds("fast")
    assert given.num_sent >= 2 * sum(SIZES.values())
