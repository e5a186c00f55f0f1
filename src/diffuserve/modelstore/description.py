"""The manifest of a model in a folder, which is checked before it is published."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folders.read_files import read_files
from diffuserve.models.registry import check_model
from diffuserve.modelstore.manifest import Manifest, ModelFile, check_manifest, parse_reference, parts_of
from diffuserve.modelstore.piece_hashes import hash_content

_THREADS = 4


def published_files(folder: Path) -> list[Path]:
    """Return the files of a model's folder that a pipeline reads, in the order of a manifest."""
    found = {
        path.relative_to(folder).as_posix(): path
        for pattern in ("*", "*/*")
        for path in folder.glob(pattern)
        if path.is_file()
    }
    return [found[path] for path in sorted(read_files(found), key=parts_of)]


def describe(
    folder: Path, name: str, license: str, source: str, report: Callable[[int], None] = lambda _: None
) -> Manifest:
    """Return the manifest of a model, whose files are read once; `report` receives the bytes read.

    Raise `InvalidModel` if no worker could serve it, and `ModelNotFound` for a name that is not allowed.
    """
    if parse_reference(name).digits:
        raise InvalidModel(f"{name!r}: the hash of a model follows from its files; give its name alone")
    family = check_model(str(folder)).spec.family
    paths = published_files(folder)
    with ThreadPoolExecutor(_THREADS) as threads:
        files = list(threads.map(partial(_described, folder, report=report), paths))
    manifest = Manifest(name, family, license, source, tuple(files))
    check_manifest(manifest)
    return manifest


def _described(folder: Path, path: Path, report: Callable[[int], None]) -> ModelFile:
    try:
        sha256, pieces = hash_content(path, report)
        return ModelFile(path.relative_to(folder).as_posix(), path.stat().st_size, sha256, pieces)
    except OSError as error:
        raise InvalidModel(f"{path}: cannot be read ({error.strerror})") from error
