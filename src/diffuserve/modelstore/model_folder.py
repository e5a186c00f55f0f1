"""Models on a disk, with the layout of a store: in a cache or a volume."""

from pathlib import Path

from diffuserve.domain.errors import InvalidModel
from diffuserve.modelstore.layout import MANIFEST, NAMES
from diffuserve.modelstore.manifest import MAX_MANIFEST_BYTES, Manifest, Reference, parse_manifest


def newest_version(root: Path, reference: Reference) -> str | None:
    """Return the most recently recorded version that matches a reference; `None` if there is none."""
    notes = [path for path in (root / NAMES / reference.name).glob("*") if reference.fits(path.name)]
    return max(notes, key=lambda path: (path.stat().st_mtime_ns, path.name)).name if notes else None


def read_manifest(folder: Path, version: str) -> Manifest:
    """Return the manifest of a folder that has all files in their sizes.

    Raise `InvalidModel` if one is not, or if the manifest is another; `FileNotFoundError` without a manifest,
    and other `OSError`s.
    """
    with (folder / MANIFEST).open("rb") as file:
        manifest = parse_manifest(file.read(MAX_MANIFEST_BYTES + 1), version)
    for described in manifest.files:
        path = folder / manifest.name / described.path
        size = path.stat().st_size if path.is_file() else None
        if size != described.size:
            told = "is missing" if size is None else f"has {size:,} bytes"
            raise InvalidModel(f"{path} {told}, and its manifest says {described.size:,} bytes")
    return manifest
