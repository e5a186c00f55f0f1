"""Names of files."""

import re

from diffuserve.domain.errors import InvalidParams

FORMATS = {".png": "PNG", ".webp": "WEBP", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""Formats of image files by suffix. Pillow's own table imports all of its formats, dozens of them."""

OPAQUE_FORMATS = frozenset({"jpeg", "jpg"})
"""Formats of image files that keep no transparency."""


def check_keeps_transparency(field: str, file_format: str) -> None:
    """Raise `InvalidParams`, for the value of `field`, for a format that keeps no transparency."""
    if file_format in OPAQUE_FORMATS:
        raise InvalidParams(field, file_format, "keeps no transparency; give png or webp")


def slug(text: str, limit: int = 60) -> str:
    """Return a file name of at most `limit` characters that reads like `text`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:limit].rstrip("-") or "image"
