"""Finished files in a folder of this machine."""

import asyncio
import hashlib
import math
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from diffuserve.domain.errors import ArtifactNotFound, TooLarge
from diffuserve.storage.base import StoredFile

_CHUNK = 1 << 18


class LocalArtifactStore:
    """A file is written beside its place, synced and renamed into it."""

    signs_urls = False

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._root.mkdir(parents=True, exist_ok=True)

    async def put(self, key: str, chunks: AsyncIterator[bytes], max_bytes: int) -> StoredFile:
        path = self._path(key)
        changed = self._make_folder(path.parent)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        digest, size = hashlib.sha256(), 0
        try:
            with partial.open("xb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > max_bytes:
                        raise TooLarge(f"{key}: more than {max_bytes:,} bytes")
                    digest.update(chunk)
                    file.write(chunk)
                await asyncio.to_thread(_sync, file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        for folder in changed:
            await asyncio.to_thread(_sync_folder, folder)
        return StoredFile(key, size, digest.hexdigest())

    async def download_url(self, key: str, seconds: float) -> str | None:
        return None

    async def upload_url(self, key: str, seconds: float) -> str | None:
        return None

    async def size(self, key: str) -> int:
        return self._existing(key).stat().st_size

    async def read(self, key: str) -> AsyncIterator[bytes]:
        with self._existing(key).open("rb") as file:
            while chunk := await asyncio.to_thread(file.read, _CHUNK):
                yield chunk

    async def delete(self, prefix: str) -> None:
        path = self._path(prefix)
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        if path.parent != self._root:
            with suppress(OSError):  # other attempts of this job are still there
                path.parent.rmdir()

    async def attempts(self, older_than_seconds: float) -> list[tuple[str, int]]:
        return await asyncio.to_thread(self._attempts, time.time() - older_than_seconds)

    def _attempts(self, changed_before: float) -> list[tuple[str, int]]:
        return [
            (folder.parent.name, int(folder.name))
            for folder in self._root.glob("*/*")
            if folder.name.isdecimal() and _changed_at(folder) < changed_before
        ]

    def _make_folder(self, folder: Path) -> list[Path]:
        """Gives the folders that must reach the disk with a new file in `folder`, innermost first."""
        new = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        return [folder, *(one.parent for one in new)]

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


def _changed_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:  # deleted since it was listed
        return math.inf


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
