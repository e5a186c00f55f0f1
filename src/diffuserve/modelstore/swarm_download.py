"""The download of a model with peers: each piece from whoever has it, from the bucket what nobody has."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.peers import MOST_READS, PeerAddress, PeerAdvice, Share
from diffuserve.modelstore.download import Report, damaged_error, recheck_present
from diffuserve.modelstore.manifest import Manifest, Piece
from diffuserve.modelstore.partial import PartialModel, explained
from diffuserve.modelstore.sources import PieceSource
from diffuserve.modelstore.spans import Span, damaged_pieces
from diffuserve.modelstore.swarm import Swarm, Transfer

log = logging.getLogger(__name__)

WAIT_SECONDS = 5.0
"""Seconds in which nothing moves, here or at the peers, after which another's share is read too."""
_LOOK_SECONDS = 0.1
_PATIENT_WAITS = 2  # for pieces that peers say they have
# Until peers are named: a worker that the control plane does not answer gets no jobs either, and of many that
# start on one machine some are named late.
_UNADVISED_WAITS = 12
_MOST_FAILURES = 3  # of one piece
Guide = Callable[[Manifest], PeerAdvice]
"""Tells who the peers are, and which share is this worker's; asked several times a second."""


@dataclass(frozen=True)
class Together:
    """Way of fetching models with others: the swarm, who guides it, and the patience with its peers."""

    swarm: Swarm
    guide: Guide
    wait_seconds: float = WAIT_SECONDS


def download_together(
    manifest: Manifest, partial: PartialModel, source: PieceSource, together: Together, report: Report
) -> Transfer:
    """Fetch the missing pieces of a model with peers; return its transfer, which goes on giving them.

    Raise the error of `source`, or `InvalidModel`, for a piece that neither it nor a peer gives.
    """
    recheck_present(partial, report)
    transfer = together.swarm.join(manifest, partial.folder, partial.present)
    try:
        with ThreadPoolExecutor(MOST_READS) as threads:
            fetching = _Fetching(manifest, partial, source, transfer, report, threads)
            try:
                fetching.run(together)
            finally:
                threads.shutdown(cancel_futures=True)
    except BaseException:
        transfer.leave()
        raise
    return transfer


class _Fetching:
    """Fetches one model. The thread that runs it owns it; `_read` alone runs on others."""

    def __init__(
        self,
        manifest: Manifest,
        partial: PartialModel,
        source: PieceSource,
        transfer: Transfer,
        report: Report,
        threads: ThreadPoolExecutor,
    ) -> None:
        self._manifest, self._partial, self._source = manifest, partial, source
        self._transfer, self._report, self._threads = transfer, report, threads
        self._reads: dict[Piece, Future[memoryview]] = {}
        self._failures: Counter[Piece] = Counter()
        self._num_received, self._num_missing, self._has_peers = 0, len(manifest.pieces), False
        self._moved_at, self._num_waits = time.monotonic(), 0

    def run(self, together: Together) -> None:
        """Bring all pieces. Raise what the source raises for one that nobody has."""
        while not self._is_done():
            advice = together.guide(self._manifest)
            self._meet(advice.peers)
            self._keep_arrived()
            self._collect_reads()
            missing = self._transfer.missing()
            self._look_at_peers(len(missing))
            self._wait_in_vain(together.wait_seconds)
            self._begin_reads(advice.share, missing)
            time.sleep(_LOOK_SECONDS)
        self._keep_arrived()

    def _is_done(self) -> bool:
        with explained(self._partial.folder):
            return self._transfer.is_done

    def _keep_arrived(self) -> None:
        for piece in self._transfer.arrived():
            self._partial.mark_written(piece)
            self._report(piece.size)
            self._moved_at = time.monotonic()

    def _meet(self, peers: Sequence[PeerAddress]) -> None:
        """Connect to peers. Waits before the first of them was named were not in vain."""
        self._transfer.meet(peers)
        if peers and not self._has_peers:
            self._has_peers, self._moved_at, self._num_waits = True, time.monotonic(), 0

    def _look_at_peers(self, num_missing: int) -> None:
        """Note that peers send, or that they have more of the model than before.

        What was waited for the first byte tells of a slow start, and not that a share is lost: many workers
        that read others' shares for that would read the bucket twice. As long as peers send, they are also
        trusted to send what they have.
        """
        received = self._transfer.num_received
        if received != self._num_received:
            most_waits = _PATIENT_WAITS - 1 if self._num_received else 0
            self._num_waits = min(self._num_waits, most_waits)
        if received != self._num_received or num_missing < self._num_missing:
            self._moved_at = time.monotonic()
        self._num_received, self._num_missing = received, num_missing

    def _wait_in_vain(self, wait_seconds: float) -> None:
        """Count a wait if nothing moves any more, at the peers or from the bucket."""
        now, waits = time.monotonic(), 1 if self._has_peers else _UNADVISED_WAITS
        if not self._reads and now - self._moved_at >= waits * wait_seconds:
            self._num_waits, self._moved_at = self._num_waits + 1, now

    def _begin_reads(self, share: Share, missing: Sequence[Piece]) -> None:
        """Read what nobody has; after two waits in vain also what peers have and do not send."""
        candidates = missing if self._num_waits < _PATIENT_WAITS else self._transfer.lacking()
        free = share.reads_at_once(self._num_waits) - len(self._reads)
        due = [piece for piece in candidates if share.has(piece.index, self._num_waits)]
        for piece in [piece for piece in due if piece not in self._reads][: max(free, 0)]:
            self._reads[piece] = self._threads.submit(self._read, piece)

    def _collect_reads(self) -> None:
        for piece in [piece for piece, read in self._reads.items() if read.done()]:
            try:
                content = self._reads.pop(piece).result()
            except DiffuserveError as error:
                self._bear(piece, error)
            else:
                self._transfer.add(piece, content)
                self._moved_at = time.monotonic()

    def _bear(self, piece: Piece, error: DiffuserveError) -> None:
        """Try a piece again; raise its error after too many failures."""
        self._failures[piece] += 1
        log.warning("%s", error)
        if self._failures[piece] >= _MOST_FAILURES:
            raise error

    def _read(self, piece: Piece) -> memoryview:
        span = Span((piece,))
        content = memoryview(self._source.read(self._manifest, piece.file, span.bytes))
        if damaged_pieces(span, content):
            raise damaged_error(self._manifest, span, self._source)
        return content
