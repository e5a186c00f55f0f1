"""Adapters in a bucket of S3 or Google Cloud Storage, or in a folder used as a bucket."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock

import obstore
from obstore.store import ObjectStore

from diffuserve.domain.codec import adapter_of, from_json
from diffuserve.domain.errors import AdapterNotFound, ArtifactNotFound, InvalidAdapter, ServerUnavailable
from diffuserve.domain.models.adapter_entry import AdapterEntry
from diffuserve.domain.text.nearest import did_you_mean
from diffuserve.modelstore.adapters.adapter_layout import (
    ENTRIES,
    REMOVED,
    blob_key,
    entry_key,
    owner_folder,
    removed_key,
)
from diffuserve.modelstore.bucket import open_place
from diffuserve.remote.buckets import translated

log = logging.getLogger(__name__)

_STORE = "adapter"
_CHUNK_BYTES = 8 * 1024 * 1024
_READERS = 8
_MAX_ENTRY_BYTES = 16_384
_ATTEMPTS = 3
KEPT = timedelta(days=30)
"""How long a file stays after its name was removed: as long as a job may say that it waits."""

Report = Callable[[int], None]


class AdapterBucket:
    """Published adapters. Safe from any thread.

    Every method raises `ServerUnavailable` if the bucket is unavailable after its retries, and
    `StorageRefused` if it does not exist or refuses access.
    """

    def __init__(self, store: ObjectStore, place: str) -> None:
        """Use the objects of `store`; `place` is its URL, for messages."""
        self._store = store
        self.place = place
        self._read: dict[tuple[str, str | None], AdapterEntry | None] = {}  # by key and tag of the content
        self._lock = Lock()

    def entries(self, tenant: str | None) -> list[AdapterEntry]:
        """Return a tenant's adapters, or without one the public ones, by their names."""
        return self._entries(owner_folder(tenant))

    def all_entries(self) -> list[AdapterEntry]:
        """Return the adapters of everyone, the public ones first."""
        return sorted(self._entries(ENTRIES), key=lambda entry: (entry.tenant or "", entry.name))

    def find(self, tenant: str | None, name: str) -> AdapterEntry | None:
        """Return the adapter of exactly this owner and name; `None` if there is none."""
        try:
            return self._entry(entry_key(tenant, name))
        except ValueError:
            return None

    def get(self, tenant: str | None, name: str) -> AdapterEntry:
        """Return the adapter of exactly this owner and name.

        Raise `AdapterNotFound`, with the nearest names, if there is none.
        """
        found = self.find(tenant, name)
        if found is None:
            hint = did_you_mean(name, [entry.name for entry in self.entries(tenant)])
            owner = "public" if tenant is None else f"tenant {tenant!r}"
            raise AdapterNotFound(
                f"{self.place} has no adapter {name!r} ({owner}){hint}; `diffuserve adapters list` shows all"
            )
        return found

    def publish(self, entry: AdapterEntry, file: Path, report: Report = lambda _: None) -> None:
        """Store a file and then its name, which meant another one before, perhaps; jobs keep that one.

        Raise `InvalidAdapter` if the file no longer is what the entry says, and `ServerUnavailable` if
        another process keeps removing it.
        """
        earlier = self.find(entry.tenant, entry.name)
        for _ in range(_ATTEMPTS):
            self._mark(entry.digest)  # so that what is left of a push that broke off is removed some day
            if self.has_blob(entry.digest):
                report(entry.num_bytes)
            else:
                self._put(blob_key(entry.digest), _checked(file, entry, report))
            if earlier is not None and earlier.digest != entry.digest:
                self._mark(earlier.digest)
            self._put(_key_of(entry), adapter_of(AdapterEntry).dump_json(entry, indent=1))
            if self.has_blob(entry.digest):
                return
            report(-entry.num_bytes)
        raise ServerUnavailable(
            f"adapter {entry.name!r}: its file vanishes from {self.place} while it is pushed"
        )

    def remove(self, entry: AdapterEntry) -> None:
        """Remove a name. The file stays for `KEPT`, for jobs that were accepted with it."""
        self._mark(entry.digest)
        self._delete(_key_of(entry))

    def sweep(self, now: datetime | None = None, kept: timedelta = KEPT) -> int:
        """Remove files whose last name was removed longer ago than they are `kept`; return their number."""
        before = (now or datetime.now(UTC)) - kept
        due = [key for key, changed_at in self._marks() if changed_at < before]
        if not due:
            return 0
        named = {entry.digest for entry in self.all_entries()}
        removed = 0
        for key in due:
            digest = key.rpartition("/")[2]
            if digest not in named:
                self._delete(blob_key(digest))
                removed += 1
            self._delete(key)
        return removed

    def has_blob(self, digest: str) -> bool:
        """Return whether a file is there."""
        try:
            with translated(_STORE, key := blob_key(digest)):
                obstore.head(self._store, key)
        except ArtifactNotFound:
            return False
        return True

    def read_blob(self, digest: str) -> Iterator[memoryview]:
        """Yield the content of a file. Raise `AdapterNotFound` if it is not there."""
        try:
            with translated(_STORE, key := blob_key(digest)):
                for chunk in obstore.get(self._store, key).stream(min_chunk_size=_CHUNK_BYTES):
                    yield memoryview(chunk)
        except ArtifactNotFound:
            raise AdapterNotFound(
                f"{self.place} has no adapter file {digest}; it was removed over {KEPT.days} days ago"
            ) from None

    def _entries(self, folder: str) -> list[AdapterEntry]:
        with translated(_STORE):
            keys = [
                (found["path"], found["e_tag"])
                for batch in obstore.list(self._store, f"{folder}/")
                for found in batch
            ]
        with ThreadPoolExecutor(_READERS) as threads:
            read = threads.map(self._known_entry, keys)
        return sorted((entry for entry in read if entry is not None), key=lambda entry: entry.name)

    def _known_entry(self, found: tuple[str, str | None]) -> AdapterEntry | None:
        """Return an entry that is read once for each content; bucket and folder give each one a tag."""
        key, tag = found
        if tag is None:
            return self._entry(key)
        if found not in self._read:
            entry = self._entry(key)
            with self._lock:
                for known in [known for known in self._read if known[0] == key]:
                    del self._read[known]
                self._read[found] = entry
        return self._read.get(found)

    def _entry(self, key: str) -> AdapterEntry | None:
        """Return the entry of a key; `None` if it is gone, or what is there is none."""
        try:
            with translated(_STORE, key):
                found = obstore.get(self._store, key)
                if found.meta["size"] > _MAX_ENTRY_BYTES:
                    raise ValueError(f"{found.meta['size']:,} bytes")
                content = bytes(found.bytes())
            entry = from_json(AdapterEntry, content)
            if _key_of(entry) != key:
                raise ValueError("it is the entry of another name or owner")
        except ArtifactNotFound:
            return None
        except ValueError as error:
            reason = str(error).splitlines()[0]
            log.warning("%s in %s is no entry of an adapter (%s); it is left out", key, self.place, reason)
            return None
        return entry

    def _marks(self) -> Sequence[tuple[str, datetime]]:
        with translated(_STORE):
            return [
                (found["path"], found["last_modified"])
                for batch in obstore.list(self._store, f"{REMOVED}/")
                for found in batch
            ]

    def _mark(self, digest: str) -> None:
        self._put(removed_key(digest), b"\n")

    def _put(self, key: str, content: bytes | Iterable[bytes]) -> None:
        with translated(_STORE):
            obstore.put(self._store, key, content, chunk_size=_CHUNK_BYTES)

    def _delete(self, key: str) -> None:
        with translated(_STORE), suppress(FileNotFoundError):
            obstore.delete(self._store, key)


def _key_of(entry: AdapterEntry) -> str:
    return entry_key(entry.tenant, entry.name)


def _checked(path: Path, entry: AdapterEntry, report: Report) -> Iterator[bytes]:
    """Yield a file's content. Raise `InvalidAdapter` before its end if it is not what the entry says."""
    digest, held = hashlib.sha256(), b""
    with path.open("rb", buffering=0) as content:
        while part := content.read(_CHUNK_BYTES):
            if held:
                yield held
            digest.update(part)
            held = part
            report(len(part))
    if digest.hexdigest() != entry.digest:
        raise InvalidAdapter(f"{path}: was changed while it was pushed; push again")
    yield held


def open_adapters(url: str) -> AdapterBucket:
    """Open the store at `s3://bucket/prefix`, `gs://bucket/prefix` or `file:///folder`.

    Raise `InvalidParams` for another URL or an invalid configuration.
    """
    return AdapterBucket(*open_place(url, "adapter_store"))
