"""Bad values of settings in words: the variable or option, its value, and what is valid."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import SettingsError

from diffuserve.domain.errors import InvalidParams

PREFIX = "DIFFUSERVE_"
_NOUNS = {int: "a whole number", float: "a number", bool: "true or false"}
_OUTSIDE = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"})
_OF_VALUES = frozenset({"enum", "literal_error"})
_FIELD_NAMED = re.compile(r'field "(\w+)"')


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def invalid_setting(
    error: ValidationError, fields: Mapping[str, FieldInfo], given: Collection[str]
) -> InvalidParams:
    """Return the error of the first bad value; those that were not `given` came from the environment."""
    first = error.errors()[0]
    name, *path = map(str, first["loc"])
    shown = name if name in given else variable_of(name)
    remedy = _remedy(first["type"], first["msg"], None if path else fields.get(name))
    return InvalidParams(".".join([shown, *path]), first["input"], remedy)


def not_json(error: SettingsError) -> InvalidParams:
    """Return the error of a variable that must hold JSON and does not."""
    found = _FIELD_NAMED.search(str(error))
    name = variable_of(found[1]) if found else "a variable"
    value = os.environ.get(name, "…")  # noqa: TID251 (the value that the reader of the environment refused)
    return InvalidParams(name, value, f"must be JSON: {error.__cause__}")


def _remedy(kind: str, message: str, field: FieldInfo | None) -> str:
    names_a_kind = kind in _OUTSIDE | _OF_VALUES or kind.endswith(("_parsing", "_type"))
    if names_a_kind and field is not None and (words := expected(field)):
        return f"must be {words}"
    message = message.removeprefix("Value error, ")
    return f"{message[:1].lower()}{message[1:]}"


def expected(field: FieldInfo) -> str | None:
    """Say what values are valid: a kind of number with its range, or one of some words."""
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, UnionType):
        annotation, *_ = [kind for kind in get_args(annotation) if kind is not NoneType]
    if get_origin(annotation) is Literal:
        return _one_of(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _one_of([member.value for member in annotation])
    noun = _NOUNS.get(annotation)
    return noun and f"{noun}{_range(field)}"


def _one_of(words: Sequence[object]) -> str:
    *first, last = map(str, words)
    return f"{', '.join(first)} or {last}"


def _range(field: FieldInfo) -> str:
    bounds = {
        name: getattr(limit, name)
        for limit in field.metadata
        for name in ("gt", "ge", "le", "lt")
        if hasattr(limit, name)
    }
    if {"ge", "le"} <= bounds.keys():
        return f" from {bounds['ge']} to {bounds['le']}"
    words = {"gt": "above", "ge": "of at least", "le": "of at most", "lt": "below"}
    return " and".join(f" {words[name]} {bound:g}" for name, bound in bounds.items())
