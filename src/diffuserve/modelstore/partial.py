"""A partially fetched model: sparse files, and a bit for each piece that was verified and written."""

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from diffuserve.domain.errors import InvalidModel, ModelCacheFull
from diffuserve.modelstore.layout import MANIFEST
from diffuserve.modelstore.manifest import Manifest, ModelFile, Piece
from diffuserve.modelstore.piece_hashes import hash_piece
from diffuserve.private_files import refused_if_unusable

_BITMAP = "pieces"
_KEPT = "; what has arrived is kept for the next try"
_HASHERS = 4
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PartialModel:
    """The files of a model in `folder`, of which some pieces are there. Several threads may write pieces.

    The process that holds the model's lock for fetching owns it.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Open the existing files, or create them. Raise `ModelCacheFull` or `InvalidParams`."""
        self.folder, self._manifest = folder, manifest
        self._lock = threading.Lock()
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / MANIFEST).write_bytes(manifest.to_json())
            for file in manifest.files:
                path = self._path(file.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                with _opened(path) as opened:
                    os.ftruncate(opened, file.size)
            num_bytes = -(-len(manifest.pieces) // 8)
            with _opened(folder / _BITMAP) as opened:
                known = os.pread(opened, num_bytes, 0)
        self._bits = bytearray(known.ljust(num_bytes, b"\0"))

    @property
    def present(self) -> list[Piece]:
        """The pieces that are marked as written, in order."""
        return [piece for piece in self._manifest.pieces if self._has(piece)]

    @property
    def missing(self) -> list[Piece]:
        """The pieces that are not there yet, in order."""
        return [piece for piece in self._manifest.pieces if not self._has(piece)]

    def recheck(self, piece: Piece) -> bool:
        """Return whether a marked piece is valid, and unmark it otherwise.

        After a crash of the machine the disk may have the mark and not the piece.
        """
        with explained(self.folder), _opened(self._path(piece.file.path)) as file:
            content = os.pread(file, piece.size, piece.offset)
            is_sound = hash_piece(content, piece.file.size) == piece.sha256
            if not is_sound:
                self._mark(piece, is_there=False)
        return is_sound

    def write(self, piece: Piece, content: memoryview) -> None:
        """Write a verified piece, then its mark. Raise `ModelCacheFull` if the disk is full."""
        with explained(self.folder), _opened(self._path(piece.file.path)) as file:
            written = 0
            while written < len(content):
                written += os.pwrite(file, content[written:], piece.offset + written)
            self._mark(piece, is_there=True)

    def mark_written(self, piece: Piece) -> None:
        """Mark a piece that a swarm has verified and written."""
        with explained(self.folder):
            self._mark(piece, is_there=True)

    def complete(self, target: Path) -> None:
        """Sync all files to the disk and move them to the folder of complete models.

        Raise `InvalidModel` if a file's hash differs from the manifest's although its pieces match: the hash
        of the whole file identifies the weights.
        """
        with explained(self.folder):
            with ThreadPoolExecutor(_HASHERS) as threads:
                hashes = threads.map(self._hash, self._manifest.files)
                _sync_all(self.folder)  # meanwhile
            for file, sha256 in zip(self._manifest.files, hashes, strict=True):
                if sha256 != file.sha256:
                    raise InvalidModel(
                        f"{self._manifest.reference}: {file.path} has the hash {sha256}, and its manifest "
                        f"claims {file.sha256}; whoever published it should push it again"
                    )
            (self.folder / _BITMAP).unlink()
            move_synced(self.folder, target)

    def _hash(self, file: ModelFile) -> str:
        with self._path(file.path).open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        os.utime(self.folder / _BITMAP)  # shows waiting processes that this one makes progress
        return found

    def _path(self, path: str) -> Path:
        return self.folder / self._manifest.name / path

    def _has(self, piece: Piece) -> bool:
        return bool(self._bits[piece.index // 8] >> piece.index % 8 & 1)

    def _mark(self, piece: Piece, is_there: bool) -> None:
        place, bit = piece.index // 8, 1 << piece.index % 8
        with self._lock, _opened(self.folder / _BITMAP) as bitmap:
            self._bits[place] = self._bits[place] | bit if is_there else self._bits[place] & ~bit
            os.pwrite(bitmap, self._bits[place : place + 1], place)


def move_synced(folder: Path, target: Path) -> None:
    """Sync a folder with its content to the disk, and then move it, so that `target` is always complete.

    If another process has moved a folder there meanwhile, that one stays, and this one is removed.
    """
    _sync_all(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        shutil.rmtree(folder)
    _sync(target.parent)


@contextmanager
def explained(folder: Path, is_kept: bool = True) -> Iterator[None]:
    """Raise `ModelCacheFull` for a full disk, and `InvalidParams` for other errors of it.

    `is_kept` means that a later download continues with the pieces that have arrived.
    """
    with refused_if_unusable(folder, "model_cache"):
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise ModelCacheFull(
                f"no space is left for a model in {folder} ({error.strerror}); free some, or give one on "
                f"another disk with --model-cache{_KEPT if is_kept else ''}"
            ) from error


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Yield an open file, created if it is missing; a link is refused."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        yield file
    finally:
        os.close(file)


def _sync_all(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
