"""The normal form of prompts: what a client sent becomes what the model reads."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

# Characters of no width, and control characters that are no white space. Joiners and variation selectors go
# too: text encoders know an emoji's parts better than its joined form. The number signs of Arabic and some
# other scripts are format characters as well, but they are visible, and stay.
_INVISIBLE = re.compile(
    "[\u0000-\u0008\u000e-\u001b\u007f-\u0084\u0086-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff0-\ufffb"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def clean(prompt: str) -> str:
    """Return the prompt in NFKC, without invisible characters, and with single spaces as white space.

    The function is idempotent. The result may be empty, or up to 18 times as long as the prompt; the caller
    rejects both. Time grows with the square of the length where many accents follow one letter, so the
    caller bounds the length first.
    """
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", prompt))
    # Normalize again: a letter and an accent that an invisible character kept apart now form one letter.
    return " ".join(unicodedata.normalize("NFKC", text).split())


def clean_lines(text: str) -> str:
    """Return a text of lines, such as lyrics, with each line cleaned."""
    return "\n".join(map(clean, text.strip().splitlines()))


def cleaned(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts among a request's values, by the names of their fields, in normal form."""
    cleaners = {"prompt": clean, "negative_prompt": clean, "lyrics": clean_lines}
    return {name: do(values[name]) for name, do in cleaners.items() if values.get(name) is not None}
