"""Files of a model store, whose hashes are known without reading them."""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import orjson

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
_VERSION = re.compile("[0-9a-f]{64}")


def published_hash(file: Path) -> str | None:
    """Return the sha256 that the manifest of a file in `HASH/NAME/PART/` names; `None` for any other file.

    A cache has verified every file on arrival.
    """
    folder = file.absolute().parents[1]
    if not _VERSION.fullmatch(folder.parent.name):
        return None
    manifest = folder.parent / MANIFEST
    try:
        found = manifest.stat()
        known = _files(manifest, found.st_mtime_ns, found.st_size)
        size, sha256 = known[file.absolute().relative_to(folder).as_posix()]
        return sha256 if file.stat().st_size == size else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@lru_cache(maxsize=8)
def _files(manifest: Path, _changed_at: int, num_bytes: int) -> Mapping[str, tuple[int, str]]:
    """Return sizes and hashes by path; a model has hundreds of files, and each asks for its own."""
    if num_bytes > MAX_MANIFEST_BYTES:
        raise ValueError(f"a manifest of {num_bytes:,} bytes")
    files = orjson.loads(manifest.read_bytes())["files"]
    return {entry["path"]: (entry["size"], str(entry["sha256"])) for entry in files}
