"""The files of a model that a pipeline reads, which alone are downloaded and published."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from diffuserve.models.folders.model_paths import INDEX_FILES
from diffuserve.models.folders.variants import one_variant

# A repository may also hold single-file weights of many gigabytes that nothing here reads.
PATTERNS = (
    *INDEX_FILES,
    "diffuserve.json",
    "*/*.json",
    "*/*.safetensors",
    "*/*.txt",
    "*/*.model",
    "*/*.jinja",  # templates of chats, which transformers renders in its sandbox
)
SUFFIXES = tuple(dict.fromkeys(PurePosixPath(pattern).suffix for pattern in PATTERNS))
"""Endings of these files."""
_UNREAD = ("safety_checker/*",)  # a part of older pipelines that is not loaded
_WEIGHTS = ".safetensors"


def read_files(paths: Iterable[str]) -> set[str]:
    """Return the files of a repository that a pipeline reads: of weights one variant."""
    read = [path for path in paths if _matches(path, PATTERNS) and not _matches(path, _UNREAD)]
    weights = [path for path in read if path.endswith(_WEIGHTS)]
    return set(read) - set(weights) | set(one_variant(weights))


def small_files(component: Path) -> list[Path]:
    """Return the files of a component's folder that are read beside its weights: configs and vocabularies."""
    found = {f"{component.name}/{path.name}": path for path in component.iterdir() if path.is_file()}
    return [found[name] for name in sorted(read_files(found)) if not name.endswith(_WEIGHTS)]


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
