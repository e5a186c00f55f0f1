"""Names of files."""

import re


def slug(text: str, limit: int = 60) -> str:
    """Return a file name of at most `limit` characters that reads like `text`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:limit].rstrip("-") or "image"
