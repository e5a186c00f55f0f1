"""Text in the form of JSON, as it is stored."""

import re

# A backslash may itself be escaped: only an odd number of them begins an escape.
_NULL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def has_null_character(text: bytes) -> bool:
    """Return whether a string in a JSON document has the character U+0000, which PostgreSQL cannot store."""
    return _NULL.search(text) is not None
