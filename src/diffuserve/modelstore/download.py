"""The download of a model: spans of pieces, several at a time, each verified before it counts."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TypeVar

from diffuserve.domain.errors import DiffuserveError, InvalidModel, InvalidParams, ModelCacheFull
from diffuserve.modelstore.manifest import Manifest, Piece
from diffuserve.modelstore.partial import PartialModel
from diffuserve.modelstore.sources import PieceSource
from diffuserve.modelstore.spans import CONNECTIONS, PieceRange, damaged_pieces, spans_of

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Report = Callable[[int], None]
"""Receives the bytes that are there since it was last called; several threads may call it."""


def download(
    manifest: Manifest, partial: PartialModel, sources: Sequence[PieceSource], report: Report
) -> None:
    """Fetch the missing pieces of a model; those from an earlier attempt are verified again.

    Raise `InvalidModel` if no source has a piece as the manifest describes it, `ModelCacheFull`, or the error
    of the last source.
    """
    recheck_present(partial, report)
    _on_threads(spans_of(partial.missing), lambda span: _fetch(manifest, span, partial, sources, report))


def recheck_present(partial: PartialModel, report: Report) -> None:
    """Verify the pieces from an earlier attempt again."""

    def recheck(piece: Piece) -> None:
        if partial.recheck(piece):
            report(piece.size)

    _on_threads(partial.present, recheck)


def damaged_error(manifest: Manifest, span: PieceRange, source: PieceSource) -> InvalidModel:
    """Return the error for a span whose content at a source does not match the manifest."""
    return InvalidModel(
        f"{manifest.reference}: {span.file.path} from byte {span.offset:,} on is not in {source.place} as "
        f"the manifest says; `diffuserve models verify {manifest.reference}` shows what is damaged"
    )


def _fetch(
    manifest: Manifest,
    span: PieceRange,
    partial: PartialModel,
    sources: Sequence[PieceSource],
    report: Report,
) -> None:
    """Fetch a span from the first source; missing and damaged pieces come from the next ones."""
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
                failed = damaged_error(manifest, missing, source)
                log.warning("%s", failed)
            pieces = tuple(piece for piece in pieces if piece not in sound)
        if not pieces:
            return
    raise failed


def _read(
    manifest: Manifest, span: PieceRange, source: PieceSource, partial: PartialModel, report: Report
) -> list[Piece]:
    """Read a span, write its valid pieces, and return them."""
    content = memoryview(source.read(manifest, span.file, span.bytes))
    damaged = damaged_pieces(span, content)
    sound = [piece for piece in span.pieces if piece not in damaged]
    for piece in sound:
        start = piece.offset - span.offset
        partial.write(piece, content[start : start + piece.size])
        report(piece.size)
    return sound


def _on_threads(items: Sequence[Item], work: Callable[[Item], None]) -> None:
    """Process all items, several at a time, until the first error."""
    stop = threading.Event()

    def unless_stopped(item: Item) -> None:
        if not stop.is_set():
            work(item)

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        try:
            _wait_for(threads.submit(unless_stopped, item) for item in items)
        except BaseException:
            stop.set()
            raise


def _wait_for(futures: Iterable[Future[None]]) -> None:
    """Wait for all futures, and raise the first error at once, canceling those that have not begun."""
    waiting = list(futures)
    try:
        for future in as_completed(waiting):
            future.result()
    except BaseException:
        for future in waiting:
            future.cancel()
        raise
