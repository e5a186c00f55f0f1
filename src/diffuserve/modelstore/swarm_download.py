"""The download of a model with peers: pieces come from peers, or from the bucket if no peer has them."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.workers.peers import MAX_READS, PeerAddress, PeerAdvice, Share
from diffuserve.modelstore.download import Report, damaged_error, recheck_present
from diffuserve.modelstore.manifest import Manifest, Piece
from diffuserve.modelstore.partial import PartialModel, explained
from diffuserve.modelstore.patience import PATIENT_WAITS, Patience
from diffuserve.modelstore.sources import PieceSource
from diffuserve.modelstore.spans import PieceRange, damaged_pieces
from diffuserve.modelstore.swarm import Swarm, Transfer

log = logging.getLogger(__name__)

WAIT_SECONDS = 5.0
"""Seconds in which nothing moves, here or at the peers, after which another's share is read too."""
_LOOK_SECONDS = 0.1
_MAX_FAILURES = 3  # to read one piece
Guide = Callable[[Manifest], PeerAdvice]
"""Tells who the peers are, and which share is this worker's; asked several times a second."""


@dataclass(frozen=True)
class SharedDownload:
    """How to fetch models with peers: the swarm, its guide, and how long to wait for peers."""

    swarm: Swarm
    guide: Guide
    wait_seconds: float = WAIT_SECONDS


def download_together(
    manifest: Manifest, partial: PartialModel, source: PieceSource, together: SharedDownload, report: Report
) -> Transfer:
    """Fetch the missing pieces of a model with peers; return its transfer, which goes on seeding.

    Raise the error of `source`, or `InvalidModel`, for a piece that comes neither from it nor from a peer.
    """
    recheck_present(partial, report)
    transfer = together.swarm.join(manifest, partial.folder, partial.present)
    try:
        patience = Patience(together.wait_seconds, len(manifest.pieces), time.monotonic())
        _Fetching(manifest, partial, source, transfer, report, patience).run(together.guide)
    except BaseException:
        transfer.leave()
        raise
    return transfer


class _Fetching:
    """Fetches one model. It is owned by the thread that calls `run`; only `_read` runs on other threads."""

    def __init__(
        self,
        manifest: Manifest,
        partial: PartialModel,
        source: PieceSource,
        transfer: Transfer,
        report: Report,
        patience: Patience,
    ) -> None:
        self._manifest, self._partial, self._source = manifest, partial, source
        self._transfer, self._report, self._patience = transfer, report, patience
        self._reads: dict[Piece, Future[memoryview]] = {}
        self._failures: Counter[Piece] = Counter()

    def run(self, guide: Guide) -> None:
        """Fetch all pieces. Raise the source's error for a piece that no peer has."""
        threads = ThreadPoolExecutor(MAX_READS)
        try:
            while not self._is_done():
                advice = guide(self._manifest)
                self._keep_arrived()
                self._collect_reads()
                missing = self._look_at_peers(advice.peers)
                self._begin_reads(threads, advice.share, missing)
                time.sleep(_LOOK_SECONDS)
        finally:
            threads.shutdown(cancel_futures=True)
        self._keep_arrived()

    def _is_done(self) -> bool:
        with explained(self._partial.folder):
            return self._transfer.is_done

    def _keep_arrived(self) -> None:
        for piece in self._transfer.arrived():
            self._partial.mark_written(piece)
            self._report(piece.size)
            self._patience.move(time.monotonic())

    def _look_at_peers(self, peers: Sequence[PeerAddress]) -> Sequence[Piece]:
        """Connect to peers; return the pieces that none of them has."""
        self._transfer.meet(peers)
        missing, now = self._transfer.missing(), time.monotonic()
        if peers:
            self._patience.meet(now)
        self._patience.look(self._transfer.num_received, len(missing), now)
        if not self._reads:
            self._patience.wait(now)
        return missing

    def _begin_reads(self, threads: ThreadPoolExecutor, share: Share, missing: Sequence[Piece]) -> None:
        """Read pieces that no peer has; after two timeouts also pieces that peers have but do not send."""
        num_waits = self._patience.num_waits
        candidates = missing if num_waits < PATIENT_WAITS else self._transfer.lacking()
        free = share.reads_at_once(num_waits) - len(self._reads)
        due = [piece for piece in candidates if share.has(piece.index, num_waits)]
        for piece in [piece for piece in due if piece not in self._reads][: max(free, 0)]:
            self._reads[piece] = threads.submit(self._read, piece)

    def _collect_reads(self) -> None:
        for piece in [piece for piece, read in self._reads.items() if read.done()]:
            try:
                content = self._reads.pop(piece).result()
            except DiffuserveError as error:
                self._tolerate(piece, error)
            else:
                self._transfer.add(piece, content)
                self._patience.move(time.monotonic())

    def _tolerate(self, piece: Piece, error: DiffuserveError) -> None:
        """Record a failed read, so that it is retried; raise the error after too many failures."""
        self._failures[piece] += 1
        log.warning("%s", error)
        if self._failures[piece] >= _MAX_FAILURES:
            raise error

    def _read(self, piece: Piece) -> memoryview:
        span = PieceRange((piece,))
        content = memoryview(self._source.read(self._manifest, piece.file, span.bytes))
        if damaged_pieces(span, content):
            raise damaged_error(self._manifest, span, self._source)
        return content
