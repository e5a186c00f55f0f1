"""Adapters in a bucket of S3 or Google Cloud Storage, or in a folder used as a bucket."""

from collections.abc import Iterator

import obstore
from obstore.store import ObjectStore

from diffuserve.domain.errors import AdapterNotFound, ArtifactNotFound
from diffuserve.modelstore.adapters.entry import blob_key
from diffuserve.modelstore.bucket import open_place
from diffuserve.remote.buckets import translated

_STORE = "adapter"
_CHUNK_BYTES = 8 * 1024 * 1024


class AdapterBucket:
    """Published adapters. Safe from any thread.

    Every method raises `ServerUnavailable` if the bucket is unavailable after its retries, and
    `StorageRefused` if it does not exist or refuses access.
    """

    def __init__(self, store: ObjectStore, place: str) -> None:
        """Use the objects of `store`; `place` is its URL, for messages."""
        self._store = store
        self.place = place

    def read_blob(self, digest: str) -> Iterator[memoryview]:
        """Yield the content of a file. Raise `AdapterNotFound` if it is not there."""
        try:
            with translated(_STORE, key := blob_key(digest)):
                for chunk in obstore.get(self._store, key).stream(min_chunk_size=_CHUNK_BYTES):
                    yield memoryview(chunk)
        except ArtifactNotFound:
            raise AdapterNotFound(
                f"{self.place} has no adapter file {digest}; it was removed, longer ago than jobs may wait"
            ) from None


def open_adapters(url: str) -> AdapterBucket:
    """Open the store at `s3://bucket/prefix`, `gs://bucket/prefix` or `file:///folder`.

    Raise `InvalidParams` for another URL or an invalid configuration.
    """
    return AdapterBucket(*open_place(url, "adapter_store"))
