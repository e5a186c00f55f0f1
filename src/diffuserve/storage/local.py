"""Finished files in a local folder."""

import asyncio
import errno
import hashlib
import itertools
import logging
import math
import os
import secrets
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from diffuserve.domain.errors import ArtifactNotFound, ServerUnavailable, StorageRefused, TooLarge
from diffuserve.storage.base import INPUTS, UploadedFile
from diffuserve.telemetry.log_fields import once_a_minute

log = logging.getLogger(__name__)

_CHUNK = 1 << 18
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class LocalArtifactStore:
    """Writes a file under a temporary name, syncs it, and renames it."""

    signs_urls = False

    def __init__(self, root: Path) -> None:
        """Create `root` and its parents if need be."""
        self._root = root.resolve()
        self._root.mkdir(parents=True, exist_ok=True)
        self.place = str(self._root)

    async def put(self, key: str, chunks: AsyncIterator[bytes], max_bytes: int) -> UploadedFile:
        """Store a file; it and its folder entries are on disk when this returns.

        Raise `ServerUnavailable` while the disk is full or fails, `StorageRefused` without permission.
        """
        path = self._path(key)
        with _unavailable_if_unwritable(key):
            return await self._put(key, path, chunks, max_bytes)

    async def _put(self, key: str, path: Path, chunks: AsyncIterator[bytes], max_bytes: int) -> UploadedFile:
        changed = self._make_folder(path.parent)
        digest, size = hashlib.sha256(), 0
        with _partial(path) as file:
            async for chunk in chunks:
                size += len(chunk)
                if size > max_bytes:
                    raise TooLarge(f"{key}: more than {max_bytes:,} bytes")
                digest.update(chunk)
                file.write(chunk)
            await asyncio.to_thread(_publish, file, path, changed)
        return UploadedFile(key, size, digest.hexdigest())

    async def put_all(self, files: Mapping[str, bytes]) -> None:
        """Store small files; they and their folder entries are on disk when this returns. Raise as `put`."""
        with _unavailable_if_unwritable(", ".join(files)):
            await asyncio.to_thread(self._put_all, files)

    def _put_all(self, files: Mapping[str, bytes]) -> None:
        changed: dict[Path, None] = {}
        for key, content in files.items():
            path = self._path(key)
            changed |= dict.fromkeys(self._make_folder(path.parent))
            with _partial(path) as file:
                file.write(content)
                _publish(file, path, ())
        for folder in changed:
            _sync_folder(folder)

    async def download_url(self, key: str, seconds: float) -> str | None:
        """Return `None`: only the control plane has access."""
        return None

    async def upload_url(self, key: str, seconds: float) -> str | None:
        """Return `None`: only the control plane has access."""
        return None

    async def size(self, key: str) -> int:
        """Return the size in bytes. Raise `ArtifactNotFound` if there is no such file."""
        return self._existing(key).stat().st_size

    async def read(self, key: str, part: range | None = None) -> AsyncIterator[bytes]:
        """Yield the content, or a part of it. Raise `ArtifactNotFound` if there is no such file."""
        with self._existing(key).open("rb") as file:
            file.seek(part.start if part else 0)
            left = len(part) if part is not None else sys.maxsize
            while chunk := await asyncio.to_thread(file.read, min(_CHUNK, left)):
                left -= len(chunk)
                yield chunk

    async def delete(self, prefix: str) -> None:
        """Delete every file under the folder `prefix`, which need not exist."""
        path = self._path(prefix)
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        if path.parent != self._root:
            with suppress(OSError):  # the job's folder is not empty: it has other attempts
                path.parent.rmdir()

    async def attempts(self, older_than_seconds: float) -> list[tuple[str, int]]:
        """Return `(job_id, lease_token)` of the folders that were not changed for `older_than_seconds`."""
        return await asyncio.to_thread(self._attempts, time.time() - older_than_seconds)

    def _attempts(self, changed_before: float) -> list[tuple[str, int]]:
        return [
            (folder.parent.name, int(folder.name))
            for folder in self._root.glob("*/*")
            if folder.name.isdecimal()
            and folder.parent.name != INPUTS
            and _changed_at(folder) < changed_before
        ]

    async def inputs(self, older_than_seconds: float) -> list[str]:
        """Return the ids of the uploaded images whose folders were not changed for `older_than_seconds`."""
        return await asyncio.to_thread(self._inputs, time.time() - older_than_seconds)

    def _inputs(self, changed_before: float) -> list[str]:
        folders = (self._root / INPUTS).glob("*")
        return [folder.name for folder in folders if _changed_at(folder) < changed_before]

    def _make_folder(self, folder: Path) -> list[Path]:
        """Create the folder; return those to sync after a new file in it, innermost first."""
        created = list(itertools.takewhile(lambda path: not path.exists(), (folder, *folder.parents)))
        folder.mkdir(parents=True, exist_ok=True)
        return [folder, *(path.parent for path in created)]

    def _existing(self, key: str) -> Path:
        path = self._path(key)
        if not path.is_file():
            raise ArtifactNotFound(f"no file {key}")
        return path

    def _path(self, key: str) -> Path:
        path = (self._root / key).resolve()
        if not path.is_relative_to(self._root) or path == self._root:
            raise ArtifactNotFound(f"no file {key!r}")
        return path


@contextmanager
def _unavailable_if_unwritable(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE | _FORBIDDEN:
            raise
        log.error("%s cannot be stored: %s", key, error.strerror, extra=once_a_minute())
        if error.errno in _FORBIDDEN:
            raise StorageRefused(f"{key} cannot be stored: {error.strerror}") from error
        raise ServerUnavailable(f"{key} cannot be stored: {error.strerror}", retry_after=2) from error


def _changed_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:  # deleted since it was listed
        return math.inf


@contextmanager
def _partial(path: Path) -> Iterator[BinaryIO]:
    """Open a file with a name of its own beside `path`, which is deleted at the end unless it was renamed."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
    finally:
        partial.unlink(missing_ok=True)


def _publish(file: BinaryIO, path: Path, folders: Iterable[Path]) -> None:
    """Sync a file, give it its name, and sync the folders that have new entries by that."""
    file.flush()  # `fsync` does not write Python's own buffer
    os.fsync(file.fileno())
    os.replace(file.name, path)
    for folder in folders:
        _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
