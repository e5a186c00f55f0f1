"""A process that opens a model of a store, says how far it is, and holds the model until its stdin ends.

python -m support.fetch_program STORE CACHE NAME [MAX_BYTES [STALL_AFTER_READS [PEERS_ADDRESS]]]
"""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.workers.peers import PeerAdvice
from diffuserve.modelstore.bucket import ModelBucket
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.libtorrent_swarm import LibtorrentSwarm
from diffuserve.modelstore.manifest import Manifest, ModelFile
from diffuserve.modelstore.store import ModelStore
from diffuserve.modelstore.swarm_download import SharedDownload


def say(*words: object) -> None:
    """Say a line, whole: what threads print at once is mixed, and Python's buffer may lose some of it."""
    os.write(sys.stdout.fileno(), f"{' '.join(map(str, words))}\n".encode())


def stall_after(num_reads: int) -> None:
    """Have every later read of a bucket wait for ever."""
    read, lock, reads = ModelBucket.read, threading.Lock(), 0

    def limited(bucket: ModelBucket, manifest: Manifest, file: ModelFile, part: range) -> memoryview:
        nonlocal reads
        with lock:
            reads += 1
            is_over = reads > num_reads
        if is_over:
            threading.Event().wait()
        return read(bucket, manifest, file, part)

    ModelBucket.read = limited  # type: ignore[method-assign, assignment]


def on_fetch(manifest: Manifest) -> Callable[[int], None]:
    say("fetching", manifest.hash)
    return lambda num_bytes: say("bytes", num_bytes)


def main(
    store: str, cache: str, name: str, max_bytes: str = "", num_reads: str = "", peers: str = ""
) -> None:
    if num_reads:
        stall_after(int(num_reads))
    config = ModelStoreConfig(
        model_store=store, model_cache=Path(cache), model_cache_bytes=int(max_bytes) if max_bytes else None
    )
    together = SharedDownload(LibtorrentSwarm(peers), lambda _: PeerAdvice()) if peers else None
    try:
        held = ModelStore(config, together=together).open(name, on_fetch)
    except DiffuserveError as error:
        say("failed", error.code, error)
        return
    say("held", held.folder)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
