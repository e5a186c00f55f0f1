"""Bodies of jobs that are submitted, from what a program gives by name."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from diffuserve.domain.requests.params import FIELDS, GenerationParams


def job_body(prompt: str | GenerationParams, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a new job: fields of a request go into its `input`, all others stand beside it.

    A field that is `None` is left out. Raise `InvalidParams` for a bad value of a request.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    drawn = {name: given.pop(name) for name in fields if name in FIELDS and name in given}
    params = GenerationParams(prompt=prompt, **drawn) if isinstance(prompt, str) else replace(prompt, **drawn)
    return {"input": params.to_dict(), **given}


def paths_in(fields: Mapping[str, Any]) -> Iterator[Path]:
    """Yield each local file that a field names, alone or in a list."""
    for value in fields.values():
        yield from (each for each in _each(value) if isinstance(each, Path))


def with_ids(fields: Mapping[str, Any], ids: Mapping[Path, str]) -> dict[str, Any]:
    """Return the fields with the ids of uploaded files in place of their paths."""
    return {name: _named(value, ids) for name, value in fields.items()}


def _each(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _named(value: Any, ids: Mapping[Path, str]) -> Any:
    if isinstance(value, list | tuple):
        return [_named(each, ids) for each in value]
    return ids[value] if isinstance(value, Path) else value
