"""The adapter files on a machine's disk, by their content: each was verified while it was written."""

import hashlib
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from diffuserve.domain.errors import InvalidAdapter
from diffuserve.domain.models.adapter_entry import MAX_ADAPTER_BYTES
from diffuserve.modelstore.adapters.adapter_layout import SUFFIX
from diffuserve.modelstore.locks import remove_unless_in_use
from diffuserve.modelstore.partial import explained

_PART = ".part"
_STALE_SECONDS = 3_600.0


class AdapterCache:
    """Files in `folder`, up to `max_bytes`. Several processes may use it at once."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes

    def path(self, digest: str) -> Path:
        """Return where a file is, or would be."""
        return self._folder / f"{digest}{SUFFIX}"

    def find(self, digest: str) -> Path | None:
        """Return a file, which counts as used now; `None` if it is not here."""
        path = self.path(digest)
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        return path

    def keep(self, digest: str, content: Iterable[bytes | memoryview], place: str) -> Path:
        """Write the content of a file as it comes from a place, and return the file.

        Others that were not used for the longest time make room. Raise `InvalidAdapter` if the content has
        another hash or too many bytes, `ModelCacheFull`, `InvalidParams`, and what `content` raises.
        """
        with explained(self._folder, is_kept=False):
            self._folder.mkdir(parents=True, exist_ok=True)
            part = _new_part(self._folder)
        try:
            with explained(self._folder, is_kept=False):
                self._write(part, digest, content, place)
                self._make_room(part.stat().st_size)
                part.replace(self.path(digest))
        finally:
            part.unlink(missing_ok=True)
        return self.path(digest)

    def _write(self, part: Path, digest: str, content: Iterable[bytes | memoryview], place: str) -> None:
        found, size = hashlib.sha256(), 0
        with part.open("wb") as file:
            for chunk in content:
                size += len(chunk)
                if size > MAX_ADAPTER_BYTES:
                    raise InvalidAdapter(
                        f"adapter {digest} in {place} has more than {MAX_ADAPTER_BYTES:,} bytes"
                    )
                found.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if found.hexdigest() != digest:
            raise InvalidAdapter(
                f"adapter {digest} in {place} is damaged: its content has the hash {found.hexdigest()}; push "
                "it again"
            )

    def _make_room(self, num_bytes: int) -> None:
        """Remove the least recently used files until so many bytes fit, and what killed processes left.

        What somebody uses stays, and may be more than fits.
        """
        kept = list[tuple[float, int, Path]]()
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):  # another process removes files too
                found = path.stat()
                kept.append((found.st_mtime, found.st_size, path))
        newest = max((used_at for used_at, _, _ in kept), default=0.0)
        total = sum(size for _, size, path in kept if path.suffix == SUFFIX) + num_bytes
        for used_at, size, path in sorted(kept):
            if path.suffix == SUFFIX and total > self._max_bytes:
                total -= size if remove_unless_in_use(path) else 0
            elif path.suffix == _PART and newest - used_at > _STALE_SECONDS:
                path.unlink(missing_ok=True)


def _new_part(folder: Path) -> Path:
    file, name = tempfile.mkstemp(_PART, dir=folder)
    os.close(file)
    return Path(name)
