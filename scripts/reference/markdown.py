"""Tables and generated regions of Markdown pages."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

_REGION = re.compile(
    r"(?P<start><!-- generated:start (?P<name>[^\n]+?) -->\n).*?(?P<end><!-- generated:end (?P=name) -->)",
    re.DOTALL,
)
_QUOTED = re.compile(r"(`[^`]*`)")
# JSON, options, variables, URLs, and paths of a server: what a help text names to be typed.
_LITERAL = re.compile(
    r"\{\".*\}|\[(?:\d+|\").*\"\]|(?<![\w-])--[a-z][\w-]*|\bDIFFUSERVE_\w+|\b[a-z0-9]+:/[^\s,;]*[^\s,;.:]"
    r"|(?<![\w/:])/[a-z]+(?:\.json)?\b"
)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells are Markdown, in which bars are escaped and lines joined."""
    lines = [headings, ["---"] * len(headings), *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(text: object) -> str:
    """Return text in the type of code; nothing stays nothing."""
    return f"`{text}`" if str(text) else ""


def prose(text: str) -> str:
    """Return a sentence for the cell of a table: no full stop at its end, and what is typed as code."""
    parts = _QUOTED.split(text.strip().removesuffix("."))
    return "".join(
        part if index % 2 else _LITERAL.sub(lambda found: code(found[0]), part)
        for index, part in enumerate(parts)
    )


def filled(page: str, regions: Mapping[str, str]) -> str:
    """Return the page with its regions filled. Raise `ValueError` unless it has just these, once each."""
    named = Counter(found["name"] for found in _REGION.finditer(page))
    if wrong := sorted(name for name in {*named, *regions} if (named[name], name in regions) != (1, True)):
        raise ValueError(f"there must be one pair of markers for each generated part; look at {wrong}")
    return _REGION.sub(lambda found: f"{found['start']}\n{regions[found['name']]}\n{found['end']}", page)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
