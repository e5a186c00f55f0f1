"""The download of a model: spans of pieces, several at a time, each verified before it counts."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from diffuserve.domain.errors import DiffuserveError, InvalidModel, InvalidParams, ModelCacheFull
from diffuserve.modelstore.manifest import Manifest, Piece
from diffuserve.modelstore.partial import PartialModel
from diffuserve.modelstore.sources import PieceSource
from diffuserve.modelstore.spans import CONNECTIONS, Span, damaged_pieces, spans_of

log = logging.getLogger(__name__)

Report = Callable[[int], None]
"""Receives the bytes that are there since it was last called; several threads may call it."""


def download(
    manifest: Manifest, partial: PartialModel, sources: Sequence[PieceSource], report: Report
) -> None:
    """Fetch the missing pieces of a model; those that an earlier try left are verified again.

    Raise `InvalidModel` if no source has a piece as the manifest describes it, `ModelCacheFull`, or the error
    of the last source.
    """
    stop = threading.Event()

    def recheck(piece: Piece) -> None:
        if not stop.is_set() and partial.recheck(piece):
            report(piece.size)

    def fetch(span: Span) -> None:
        if not stop.is_set():
            _fetch(manifest, span, partial, sources, report)

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        try:
            _wait_for(threads.submit(recheck, piece) for piece in partial.present)
            _wait_for(threads.submit(fetch, span) for span in spans_of(partial.missing))
        except BaseException:
            stop.set()
            raise


def _fetch(
    manifest: Manifest, span: Span, partial: PartialModel, sources: Sequence[PieceSource], report: Report
) -> None:
    """Fetch a span from the first source that has it; from the next what one lacks, or has otherwise."""
    pieces, error = span.pieces, InvalidModel(f"{manifest.reference}: no source has it")
    failed: DiffuserveError = error
    for source in (*sources, *sources[-1:]):  # the last one twice: a single read may be damaged
        for missing in spans_of(pieces):
            try:
                sound = _read(manifest, missing, source, partial, report)
            except (ModelCacheFull, InvalidParams):
                raise
            except DiffuserveError as error:
                failed = error
                log.info("%s cannot be read from %s: %s", missing.file.path, source.place, error)
                continue
            if len(sound) < len(missing.pieces):
                failed = _damaged(manifest, missing, source)
                log.warning("%s", failed)
            pieces = tuple(piece for piece in pieces if piece not in sound)
        if not pieces:
            return
    raise failed


def _read(
    manifest: Manifest, span: Span, source: PieceSource, partial: PartialModel, report: Report
) -> list[Piece]:
    """Read a span and write its sound pieces; return these."""
    content = memoryview(source.read(manifest, span.file, span.bytes))
    damaged = damaged_pieces(span, content)
    sound = [piece for piece in span.pieces if piece not in damaged]
    for piece in sound:
        start = piece.offset - span.offset
        partial.write(piece, content[start : start + piece.size])
        report(piece.size)
    return sound


def _damaged(manifest: Manifest, span: Span, source: PieceSource) -> InvalidModel:
    return InvalidModel(
        f"{manifest.reference}: {span.file.path} from byte {span.offset:,} on is not in {source.place} as "
        f"the manifest says; `diffuserve models verify {manifest.reference}` shows what is damaged"
    )


def _wait_for(futures: Iterable[Future[None]]) -> None:
    """Wait for all, and raise the first error at once; those that have not begun are cancelled."""
    waiting = list(futures)
    try:
        for future in as_completed(waiting):
            future.result()
    except BaseException:
        for future in waiting:
            future.cancel()
        raise
