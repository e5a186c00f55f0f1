"""Models for the tests of model stores."""

import random
from pathlib import Path

from diffuserve.modelstore.manifest import Manifest, ModelFile, parts_of
from diffuserve.modelstore.piece_hashes import hash_content


def write_files(folder: Path, sizes: dict[str, int], seed: int = 0) -> Path:
    """Write files of random bytes."""
    source = random.Random(seed)
    for path, size in sizes.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(source.randbytes(size))
    return folder


def manifest_of(folder: Path, name: str = "small") -> Manifest:
    """Return the manifest of files that need be no model."""
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    files = [_described(folder / path, path) for path in sorted(paths, key=parts_of)]
    return Manifest(name, "fake", "apache-2.0", "a test", tuple(files))


def _described(file: Path, path: str) -> ModelFile:
    sha256, pieces = hash_content(file)
    return ModelFile(path, file.stat().st_size, sha256, pieces)
