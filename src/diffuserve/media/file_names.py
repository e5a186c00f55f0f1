"""Names of files."""

import re

FORMATS = {".png": "PNG", ".webp": "WEBP", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""Formats of image files by suffix. Pillow's own table imports all of its formats, dozens of them."""


def slug(text: str, limit: int = 60) -> str:
    """Return a file name of at most `limit` characters that reads like `text`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:limit].rstrip("-") or "image"
