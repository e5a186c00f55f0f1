"""Text of others, made harmless to what shows it.

A terminal obeys control characters: they set its title and its clipboard, and hide or forge what stands on
it. Characters that override the direction of text have a line read otherwise than it is written.
"""

import re

# C0 without tab and newline, DEL and C1; overrides, embeddings and isolates of direction.
_UNSEEN = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
_UNSEEN_IN_TEXT = re.compile(f"[{_UNSEEN}]")
_UNSEEN_IN_LINE = re.compile(f"[{_UNSEEN}\n\u2028\u2029]")


def visible(text: str) -> str:
    r"""Return text whose control characters are spelled out, as `\u001b`; lines and tabs stay.

    That is how JSON spells them, so a document of JSON still holds the same.
    """
    return _UNSEEN_IN_TEXT.sub(_spelled, text)


def visible_line(text: str) -> str:
    """Return text as `visible` does, on a single line."""
    return _UNSEEN_IN_LINE.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
