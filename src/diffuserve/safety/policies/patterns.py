"""Regular expressions of a policy, compiled by RE2.

RE2 has neither lookaround nor backreferences, and in return a search takes time linear in the text's length.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import re2

MAX_PATTERN_CHARACTERS = 500
MAX_INSTRUCTIONS = 10_000
"""Size of a compiled pattern; a search takes at most so many steps for each character of the text."""


class PatternMatch(NamedTuple):
    """A match of `pattern` from character `start` up to, and without, character `end`."""

    pattern: str
    start: int
    end: int


class PatternList:
    """The patterns of a word list, searched as one pattern first: most texts match none of them."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raise `ValueError` for a pattern that `compile_pattern` refuses."""
        self._patterns = [compile_pattern(pattern) for pattern in patterns]
        self._union = _compile_union(patterns)

    def find_all(self, text: str) -> Iterator[PatternMatch]:
        """Yield the matches of each pattern in turn, those of a pattern in the order of the text."""
        if self._union is not None and self._union.search(text) is None:
            return
        for pattern in self._patterns:
            for match in pattern.finditer(text):
                yield PatternMatch(pattern.pattern, *match.span())


def compile_pattern(pattern: str) -> Any:
    """Return a compiled pattern with the interface of `re.Pattern`, to be searched in folded text.

    Raise `ValueError` with the remedy if RE2 does not know the syntax, if the pattern is too large, or if it
    matches the empty text.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise ValueError(f"is longer than {MAX_PATTERN_CHARACTERS} characters; split it")
    try:
        compiled = re2.compile(pattern, _options())
    except re2.error as error:
        raise ValueError(_syntax_error(error)) from error
    except UnicodeEncodeError as error:
        raise ValueError(f"is not valid Unicode: {error}") from error
    if compiled.search("") is not None:
        raise ValueError("matches the empty text; name a letter that must be there")
    if compiled.programsize > MAX_INSTRUCTIONS:
        raise ValueError(
            f"compiles to {compiled.programsize:,} instructions, more than {MAX_INSTRUCTIONS:,}; repeat less"
        )
    return compiled


def _compile_union(patterns: Sequence[str]) -> Any | None:
    """Return a pattern that matches where any of `patterns` does; `None` if RE2 finds it too large."""
    if not patterns:
        return None
    try:
        return re2.compile("|".join(f"(?:{pattern})" for pattern in patterns), _options())
    except re2.error:
        return None


def _options() -> Any:
    options = re2.Options()
    options.case_sensitive = False  # folded text is in lower case, a pattern need not be
    options.never_capture = True
    options.log_errors = False  # RE2 would write them to stderr as well
    return options


def _syntax_error(error: Exception) -> str:
    reason = error.args[0].decode(errors="replace")
    return (
        f"is not a regular expression that RE2 knows ({reason}); it has no lookaround, no backreferences "
        "and no possessive repeats"
    )
