"""Manifests as the text of a template, with an expression wherever a chart's values decide."""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import yaml

_HOLE = re.compile(r"HOLE(\d+)E")
_MARGIN = re.compile(r"(?:- | )*")
_NINDENT = re.compile(r"nindent (\d+)")


@dataclass(frozen=True)
class Inline:
    """Text of a template within one line, in place of a value."""

    text: str


@dataclass(frozen=True)
class Block:
    """An expression whose value is written as YAML: a mapping or a list."""

    expression: str


@dataclass(frozen=True)
class Lines:
    """Lines of a template in place of a value or an item; their `nindent` counts from their own margin."""

    text: str


Hole = Inline | Block | Lines | None
"""What stands in a place of a manifest; `None` leaves its field out."""
Holes = Mapping[str, Hole]
"""Holes by their places, as JSON pointers without the first `/`; a last `+` adds to a mapping or list."""


def as_template(manifest: Any, holes: Holes) -> str:
    """Return a manifest as text with these holes. Raise `KeyError` for a place that is not there."""
    marked = deepcopy(manifest)
    numbered = list(holes.items())
    for number, (place, hole) in enumerate(numbered):
        _mark(
            marked,
            [part.replace("~1", "/") for part in place.split("/")],
            f"HOLE{number}E",
            is_left_out=hole is None,
        )
    text = yaml.safe_dump(marked, sort_keys=False, width=float("inf"))
    if "{{" in text:
        raise ValueError("the manifest has braces of its own, which a template would read")
    return "\n".join(_filled(line, numbered) for line in text.splitlines()) + "\n"


def _mark(node: Any, path: list[str], mark: str, *, is_left_out: bool) -> None:
    *above, last = path
    for key in above:
        node = node[int(key)] if isinstance(node, list) else node[key]
    if isinstance(node, list):
        if last == "+":
            node.append(mark)
        else:
            node[int(last)] = mark
    elif last == "+":
        node[mark] = None
    elif is_left_out:
        del node[last]
    elif last not in node:
        raise KeyError("/".join(path))
    else:
        node[last] = mark


def _filled(line: str, holes: list[tuple[str, Hole]]) -> str:
    found = _HOLE.search(line)
    if found is None:
        return line
    hole, margin = holes[int(found[1])][1], len(_MARGIN.match(line)[0])  # type: ignore[index]
    if isinstance(hole, Inline):
        return line.replace(found[0], hole.text)
    if isinstance(hole, Block):
        return line.replace(found[0], f"{{{{- toYaml {hole.expression} | nindent {margin + 2} }}}}")
    assert isinstance(hole, Lines)
    key = line[: found.start()].rstrip()
    if key.endswith(":"):  # a value: its lines are one step to the right of its key
        return f"{key}\n{_shifted(hole.text, margin + 2)}"
    return _shifted(hole.text, len(line) - len(line.lstrip()))


def _shifted(text: str, margin: int) -> str:
    further = _NINDENT.sub(lambda found: f"nindent {int(found[1]) + margin}", text)
    return "\n".join(" " * margin + line for line in further.strip("\n").splitlines())
