"""Files of requests, a JSON object a line, which may say when each is due."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffuserve.bench.load_request import LoadRequest
from diffuserve.domain.errors import InvalidParams

_MAX_LINES = 1_000_000
_OWN = frozenset({"prompt", "text", "timestamp", "extra", "tenant", "priority", "label"})


@dataclass(frozen=True)
class Recorded:
    """A request of a file, and the second at which it is due, where the file says so."""

    asked: LoadRequest
    due: float | None


def load_trace(path: Path) -> list[Recorded]:
    """Return the requests of a file, in its order. Raise `InvalidParams`, which names the line.

    Names are those of aiperf: `text` or `prompt`, `timestamp` in milliseconds, and in `extra` what is sent
    beside the prompt; `size` there is `WIDTHxHEIGHT`. `tenant`, `priority` and `label` are ours.
    """
    try:
        with path.open(encoding="utf-8") as file:
            found = list(_lines(path, file))
    except OSError as error:
        raise InvalidParams("input_file", str(path), f"cannot be read: {error.strerror}") from error
    if not found:
        raise InvalidParams("input_file", str(path), "has no line")
    return found


def dues_of(trace: list[Recorded], path: Path) -> list[float]:
    """Return when each request is due, counted from the first. Raise `InvalidParams` if a line is silent."""
    dues = [each.due for each in trace]
    for number, due in enumerate(dues, start=1):
        if due is None:
            raise InvalidParams("input_file", str(path), f"line {number} has no `timestamp`, in ms")
    known = [due for due in dues if due is not None]
    return [due - min(known) for due in known]


def _lines(path: Path, lines: Iterator[str]) -> Iterator[Recorded]:
    for number, line in enumerate(lines, start=1):
        if number > _MAX_LINES:
            raise InvalidParams("input_file", str(path), f"must have at most {_MAX_LINES:,} lines")
        if line.strip():
            try:
                yield _recorded(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise InvalidParams("input_file", str(path), f"line {number}: {error}") from error


def _recorded(line: dict[str, Any]) -> Recorded:
    if unknown := line.keys() - _OWN:
        raise ValueError(
            f"{', '.join(sorted(unknown))} is not known; what is sent beside the prompt is `extra`"
        )
    fields = dict(line.get("extra") or {})
    width, height = _size(fields)
    asked = LoadRequest(
        label=str(line.get("label", "trace")),
        prompt=str(line["prompt"] if "prompt" in line else line["text"]),
        width=width,
        height=height,
        fields=fields,
        tenant=line.get("tenant"),
        priority=line.get("priority"),
    )
    due = line.get("timestamp")
    return Recorded(asked, None if due is None else float(due) / 1000)


def _size(fields: dict[str, Any]) -> tuple[int | None, int | None]:
    """Take the size out of the fields."""
    if size := fields.pop("size", None):
        width, _, height = str(size).partition("x")
        return int(width), int(height)
    return fields.pop("width", None), fields.pop("height", None)
