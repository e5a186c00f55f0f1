"""Where finished files live. Keys are `{job}/{lease_token}/{name}`."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

_CONTENT_TYPES = {"png": "image/png", "webp": "image/webp", "jpeg": "image/jpeg", "jpg": "image/jpeg"}


def content_type_of(name: str) -> str:
    """By the name's end."""
    return _CONTENT_TYPES.get(name.rpartition(".")[2].lower(), "application/octet-stream")


@dataclass(frozen=True)
class StoredFile:
    """A file that is whole and durable."""

    key: str
    size_bytes: int
    sha256: str


class ArtifactStore(Protocol):
    """Finished files by key. A file appears whole or not at all.

    Every method raises `ServerUnavailable` when the store stays away, `ArtifactNotFound` for a key that
    no file can have.
    """

    signs_urls: bool
    """Whether clients and workers reach it themselves, by URLs that it signs."""

    async def put(self, key: str, chunks: AsyncIterator[bytes], max_bytes: int) -> StoredFile:
        """Store what `chunks` give, over what was there. Raises `TooLarge` past `max_bytes`."""
        ...

    async def download_url(self, key: str, seconds: float) -> str | None:
        """A URL that opens the file for so long; `None` from a store that signs none."""
        ...

    async def upload_url(self, key: str, seconds: float) -> str | None:
        """A URL that takes the file by PUT for so long; `None` from a store that signs none."""
        ...

    async def size(self, key: str) -> int:
        """Raises `ArtifactNotFound`."""
        ...

    def read(self, key: str) -> AsyncIterator[bytes]:
        """Raises `ArtifactNotFound` at the first chunk."""
        ...

    async def delete(self, prefix: str) -> None:
        """Delete every file under the folder `prefix`; nothing there is no error."""
        ...

    async def attempts(self, older_than_seconds: float) -> list[tuple[str, int]]:
        """The `(job_id, lease_token)` folders in which nothing changed for so long."""
        ...
