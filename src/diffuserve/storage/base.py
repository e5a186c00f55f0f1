"""Where finished files live. Keys are `{job}/{lease_token}/{name}`."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StoredFile:
    """A file that is whole and durable."""

    key: str
    size_bytes: int
    sha256: str


class ArtifactStore(Protocol):
    """Finished files by key. A file appears whole or not at all."""

    async def put(self, key: str, chunks: AsyncIterator[bytes], max_bytes: int) -> StoredFile:
        """Store what `chunks` give, over what was there. Raises `TooLarge` past `max_bytes`."""
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
