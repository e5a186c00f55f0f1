"""Pieces that are read together: neighbors in one file, 8 MiB at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diffuserve.modelstore.manifest import ModelFile, Piece
from diffuserve.modelstore.piece_hashes import hash_piece

CONNECTIONS = 8
_PIECES = 2  # 8 MiB


@dataclass(frozen=True)
class PieceRange:
    """Neighboring pieces of one file."""

    pieces: tuple[Piece, ...]

    @property
    def file(self) -> ModelFile:
        return self.pieces[0].file

    @property
    def offset(self) -> int:
        return self.pieces[0].offset

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def bytes(self) -> range:
        """The places of its bytes in the file."""
        return range(self.offset, self.offset + self.size)


def spans_of(pieces: Iterable[Piece]) -> list[PieceRange]:
    """Return the spans of pieces that are in order."""
    spans: list[list[Piece]] = []
    for piece in pieces:
        if spans and len(spans[-1]) < _PIECES and _follows(spans[-1][-1], piece):
            spans[-1].append(piece)
        else:
            spans.append([piece])
    return [PieceRange(tuple(span)) for span in spans]


def damaged_pieces(span: PieceRange, content: memoryview) -> Sequence[Piece]:
    """Return the pieces of a span whose content is missing or not what their hashes say."""
    return [piece for piece in span.pieces if not _is_sound(piece, content[piece.offset - span.offset :])]


def _is_sound(piece: Piece, content: memoryview) -> bool:
    return hash_piece(content[: piece.size], piece.file.size) == piece.sha256


def _follows(before: Piece, after: Piece) -> bool:
    return before.file is after.file and after.index == before.index + 1
