"""The known name that is most like one that is mistyped."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_NUM_CLOSE = 5
_LEAST_BEGINNING = 5  # letters of a name that is cut short, such as "Euler a"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`, whatever their cases; `None` if none is like it.

    The only one that begins with it goes before those that are spelled like it.
    """
    spelled = {word.lower(): word for word in known}
    begun = [word for word in spelled if _letters(word).startswith(_letters(name))]
    if len(begun) == 1 and len(_letters(name)) >= _LEAST_BEGINNING:
        return spelled[begun[0]]
    close = get_close_matches(name.lower(), spelled, n=_NUM_CLOSE)
    swapped = [word for word in close if sorted(word) == sorted(name.lower())]  # the likeliest slip
    return next((spelled[word] for word in swapped + close), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message, such as `; did you mean 'cuda'?`; `''` if no known name is like `name`."""
    found = nearest(name, known)
    return f"; did you mean {found!r}?" if found else ""


def same_numbers(name: str, other: str) -> bool:
    """Return whether two names of versions have the same digits, or one of them no more than it says."""
    found, known = (re.sub(r"\D", "", each) for each in (name, other))
    return found.startswith(known) or known.startswith(found)


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())
