"""Variants of weights: a folder may hold the same ones several times, such as in half precision.

The word between a file's name and its suffix tells the variant: `model.fp16.safetensors`, or
`model.fp16-00001-of-00002.safetensors`.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath

_HALF = "fp16"


def one_variant(paths: Iterable[str]) -> list[str]:
    """Return the weights of one variant in each folder, in order: plain ones, else those in half precision.

    Of other variants alone all are returned.
    """
    folders = defaultdict[str, list[str]](list)
    for path in sorted(paths):
        folders[str(PurePosixPath(path).parent)].append(path)
    return [path for files in folders.values() for path in _choose(files)]


def _choose(files: list[str]) -> list[str]:
    plain = [path for path in files if not _variant(path)]
    return plain or [path for path in files if _variant(path) == _HALF] or files


def _variant(path: str) -> str:
    """Return a file's variant; "" for a plain file."""
    return PurePosixPath(path).name.removesuffix(".safetensors").partition(".")[2].partition("-")[0]
