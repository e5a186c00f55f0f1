"""Finished files in a bucket of S3, of an S3-compatible store, or of Google Cloud Storage."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from datetime import UTC, datetime, timedelta
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeVar, cast

import obstore
from obstore.store import GCSStore, S3Store

from diffuserve.domain.errors import ArtifactNotFound, TooLarge
from diffuserve.remote.buckets import translated
from diffuserve.storage.base import INPUTS, UploadedFile, content_type_of

if TYPE_CHECKING:
    from obstore import GetOptions

Folder = TypeVar("Folder", bound=Hashable)

_PART_BYTES = 8 * 1024 * 1024  # larger files are uploaded in parts of this size
_PARTS_AT_ONCE = 2  # of a file, which bounds what of it is in memory
_STORE = "artifact"


class BucketArtifactStore:
    """Stores each file as one object; buckets make an object visible only once it is complete."""

    signs_urls = True

    def __init__(self, bucket: S3Store | GCSStore, place: str) -> None:
        """Store files in `bucket`; `place` is its URL."""
        self._bucket = bucket
        self.place = place

    async def put(self, key: str, chunks: AsyncIterator[bytes], max_bytes: int) -> UploadedFile:
        """Upload a file in one request or in parts; the bucket verifies the checksum sent with each.

        A file of several parts waits on disk until it is complete.
        """
        with SpooledTemporaryFile(_PART_BYTES) as file:
            uploaded = await _received(_checked(key), chunks, max_bytes, file)
            file.seek(0)
            await self._put(key, cast(BinaryIO, file) if uploaded.size_bytes > _PART_BYTES else file.read())
        return uploaded

    async def put_all(self, files: Mapping[str, bytes]) -> None:
        """Upload small files beside each other; the bucket verifies the checksum sent with each."""
        await asyncio.gather(*(self._put(_checked(key), content) for key, content in files.items()))

    async def _put(self, key: str, content: bytes | BinaryIO) -> None:
        with translated(_STORE):
            await obstore.put_async(
                self._bucket,
                key,
                content,
                attributes={"Content-Type": content_type_of(key)},
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )

    async def download_url(self, key: str, seconds: float) -> str | None:
        """Return a URL that serves the file by GET for `seconds`."""
        return await self._sign("GET", key, seconds)

    async def upload_url(self, key: str, seconds: float) -> str | None:
        """Return a URL that accepts the file by PUT for `seconds`."""
        return await self._sign("PUT", key, seconds)

    async def _sign(self, method: Literal["GET", "PUT"], key: str, seconds: float) -> str:
        with translated(_STORE, key):
            return await obstore.sign_async(self._bucket, method, _checked(key), timedelta(seconds=seconds))

    async def size(self, key: str) -> int:
        """Return the size in bytes. Raise `ArtifactNotFound` if there is no such file."""
        with translated(_STORE, key):
            return int((await obstore.head_async(self._bucket, _checked(key)))["size"])

    async def read(self, key: str, part: range | None = None) -> AsyncIterator[bytes]:
        """Yield the content, or a part of it. Raise `ArtifactNotFound` if there is no such file."""
        options: GetOptions = {} if part is None else {"range": (part.start, part.stop)}
        with translated(_STORE, key):
            content = await obstore.get_async(self._bucket, _checked(key), options=options)
            async for chunk in content:
                yield bytes(chunk)

    async def delete(self, prefix: str) -> None:
        """Delete every object under the folder `prefix`, which need not exist."""
        with translated(_STORE):
            async for batch in obstore.list(self._bucket, f"{_checked(prefix)}/"):
                with translated(_STORE, prefix):  # another may have deleted an object meanwhile
                    await obstore.delete_async(self._bucket, [entry["path"] for entry in batch])

    async def attempts(self, older_than_seconds: float) -> list[tuple[str, int]]:
        """Return `(job_id, lease_token)` of the folders that were not changed for `older_than_seconds`."""
        return await self._old_folders(None, _attempt_of, older_than_seconds)

    async def inputs(self, older_than_seconds: float) -> list[str]:
        """Return the ids of the uploaded images whose folders were not changed for `older_than_seconds`."""
        return await self._old_folders(f"{INPUTS}/", _input_of, older_than_seconds)

    async def _old_folders(
        self, prefix: str | None, folder_of: Callable[[str], Folder | None], older_than_seconds: float
    ) -> list[Folder]:
        newest: dict[Folder, datetime] = {}
        with translated(_STORE):
            async for batch in obstore.list(self._bucket, prefix):
                for entry in batch:
                    folder, changed_at = folder_of(entry["path"]), entry["last_modified"]
                    if folder is not None:
                        newest[folder] = max(newest.get(folder, changed_at), changed_at)
        changed_before = datetime.now(UTC) - timedelta(seconds=older_than_seconds)
        return [folder for folder, changed_at in newest.items() if changed_at < changed_before]


def _attempt_of(key: str) -> tuple[str, int] | None:
    """Return `(job_id, lease_token)` of a file's key; `None` for a file of another origin."""
    job_id, _, rest = key.partition("/")
    token = rest.partition("/")[0]
    return (job_id, int(token)) if job_id != INPUTS and token.isdecimal() else None


def _input_of(key: str) -> str | None:
    """Return the id of an uploaded image from its file's key."""
    return key.removeprefix(f"{INPUTS}/").partition("/")[0] or None


async def _received(
    key: str, chunks: AsyncIterator[bytes], max_bytes: int, file: SpooledTemporaryFile[bytes]
) -> UploadedFile:
    digest, size = hashlib.sha256(), 0
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise TooLarge(f"{key}: more than {max_bytes:,} bytes")
        digest.update(chunk)
        if size > _PART_BYTES:
            await asyncio.to_thread(file.write, chunk)
        else:
            file.write(chunk)
    return UploadedFile(key, size, digest.hexdigest())


def _checked(key: str) -> str:
    """Return the key. Raise `ArtifactNotFound` if it is empty or has an empty or relative part."""
    if not key or any(part in ("", ".", "..") for part in key.split("/")):
        raise ArtifactNotFound(f"no file {key!r}")
    return key
