"""Files whose hashes are known without reading them: those of models that this process has from a store.

A folder that only looks like a store's is none: its manifest may name the hashes of another model.
"""

from collections.abc import Mapping
from pathlib import Path

Files = Mapping[str, tuple[int, str]]
"""Sizes in bytes and sha256 of a model's files, by their paths in its folder."""
_known: dict[Path, Files] = {}


def publish(folder: Path, files: Files) -> None:
    """Record the hashes of a model's folder, whose files were all verified on arrival."""
    _known[folder.absolute()] = files


def published_hash(file: Path) -> str | None:
    """Return the sha256 of a file in `PART/` of such a folder; `None` for any other, or one that changed."""
    folder = file.absolute().parents[1]
    known = _known.get(folder, {}).get(file.absolute().relative_to(folder).as_posix())
    if known is None:
        return None
    size, sha256 = known
    return sha256 if file.stat().st_size == size else None
