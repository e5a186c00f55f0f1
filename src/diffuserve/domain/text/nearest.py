"""The known name that is most like one that is mistyped."""

from collections.abc import Iterable
from difflib import get_close_matches

_NUM_CLOSE = 5


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`, whatever their cases; `None` if none is like it."""
    spelled = {word.lower(): word for word in known}
    close = get_close_matches(name.lower(), spelled, n=_NUM_CLOSE)
    swapped = [word for word in close if sorted(word) == sorted(name.lower())]  # the likeliest slip
    return next((spelled[word] for word in swapped + close), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message, such as `; did you mean 'cuda'?`; `''` if no known name is like `name`."""
    found = nearest(name, known)
    return f"; did you mean {found!r}?" if found else ""
