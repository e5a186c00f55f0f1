"""Images that a program has itself, wherever the fields of a request name them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

LocalImage = Path | bytes | BinaryIO
"""A file's path, an image's content, or a file that is open for reading bytes."""


def local_images(value: object) -> Iterator[LocalImage]:
    """Yield each image in a value, in its lists and mappings."""
    if is_local(value):
        yield value  # type: ignore[misc]
    for each in _parts(value):
        yield from local_images(each)


def with_ids(value: Any, ids: Mapping[LocalImage, str]) -> Any:
    """Return the value with the ids of uploaded files in place of its images."""
    if is_local(value):
        return ids[value]
    if isinstance(value, Mapping):
        return {name: with_ids(each, ids) for name, each in value.items()}
    return [with_ids(each, ids) for each in value] if isinstance(value, list | tuple) else value


def is_local(value: object) -> bool:
    """Return whether a value is an image that must be uploaded before a request can name it."""
    return isinstance(value, Path | bytes) or hasattr(value, "read")


def _parts(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
