"""Finished files in a bucket: S3, anything that speaks S3, or Google Cloud Storage."""

import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Literal

import obstore
from obstore.exceptions import BaseError
from obstore.store import GCSStore, S3Store

from diffuserve.domain.errors import ArtifactNotFound, ServerUnavailable, TooLarge
from diffuserve.storage.base import StoredFile, content_type_of

_PART_BYTES = 8 * 1024 * 1024  # larger files go in parts of this size


class BucketArtifactStore:
    """An object appears once it is whole, which is what the bucket promises."""

    signs_urls = True

    def __init__(self, bucket: S3Store | GCSStore) -> None:
        self._bucket = bucket

    async def put(self, key: str, chunks: AsyncIterator[bytes], max_bytes: int) -> StoredFile:
        """In one request, or in parts; the bucket checks each against the checksum that goes with it."""
        content = await _read(_checked(key), chunks, max_bytes)
        with _translated(key):
            await obstore.put_async(
                self._bucket,
                key,
                content,
                attributes={"Content-Type": content_type_of(key)},
                chunk_size=_PART_BYTES,
            )
        return StoredFile(key, len(content), hashlib.sha256(content).hexdigest())

    async def download_url(self, key: str, seconds: float) -> str | None:
        return await self._sign("GET", key, seconds)

    async def upload_url(self, key: str, seconds: float) -> str | None:
        return await self._sign("PUT", key, seconds)

    async def _sign(self, method: Literal["GET", "PUT"], key: str, seconds: float) -> str:
        with _translated(key):
            return await obstore.sign_async(self._bucket, method, _checked(key), timedelta(seconds=seconds))

    async def size(self, key: str) -> int:
        with _translated(key):
            return int((await obstore.head_async(self._bucket, _checked(key)))["size"])

    async def read(self, key: str) -> AsyncIterator[bytes]:
        with _translated(key):
            found = await obstore.get_async(self._bucket, _checked(key))
            async for chunk in found:
                yield bytes(chunk)

    async def delete(self, prefix: str) -> None:
        with _translated(prefix):
            async for batch in obstore.list(self._bucket, f"{_checked(prefix)}/"):
                await obstore.delete_async(self._bucket, [one["path"] for one in batch])

    async def attempts(self, older_than_seconds: float) -> list[tuple[str, int]]:
        newest: dict[tuple[str, int], datetime] = {}
        with _translated(""):
            async for batch in obstore.list(self._bucket):
                for one in batch:
                    job_id, _, rest = one["path"].partition("/")
                    token = rest.partition("/")[0]
                    if token.isdecimal():
                        folder = (job_id, int(token))
                        newest[folder] = max(newest.get(folder, one["last_modified"]), one["last_modified"])
        changed_before = datetime.now(UTC) - timedelta(seconds=older_than_seconds)
        return [folder for folder, changed_at in newest.items() if changed_at < changed_before]


async def _read(key: str, chunks: AsyncIterator[bytes], max_bytes: int) -> bytes:
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > max_bytes:
            raise TooLarge(f"{key}: more than {max_bytes:,} bytes")
    return bytes(content)


def _checked(key: str) -> str:
    """Raises `ArtifactNotFound` for a key that no file can have."""
    if not key or any(part in ("", ".", "..") for part in key.split("/")):
        raise ArtifactNotFound(f"no file {key!r}")
    return key


@contextmanager
def _translated(key: str) -> Iterator[None]:
    """The bucket's errors in our words."""
    try:
        yield
    except FileNotFoundError as error:
        raise ArtifactNotFound(f"no file {key}") from error
    except BaseError as error:
        reason = str(error).splitlines()[0]
        raise ServerUnavailable(f"the store of finished files does not answer: {reason}") from error
