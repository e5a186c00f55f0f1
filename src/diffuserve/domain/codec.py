"""The codec of values that cross a process, the network or the database: JSON, read by its types.

Bounds stand in the types. Fields that a newer version has added are ignored here; those that an
earlier one did not know have their defaults.
"""

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter

Value = TypeVar("Value")


def from_json(kind: type[Value], text: str | bytes) -> Value:
    """Return the value of a type that is written as JSON. Raise `ValueError` if none is, or out of bounds."""
    value: Value = adapter_of(kind).validate_json(text)
    return value


def from_values(kind: type[Value], values: object) -> Value:
    """Return the value of a type that JSON was parsed into. Raise `ValueError` if it is none."""
    value: Value = adapter_of(kind).validate_python(values)
    return value


def adapter_of(kind: type[Any]) -> TypeAdapter[Any]:
    """Return what reads values of a type; it is built at its first use, which takes milliseconds."""
    return _adapter(cast(Hashable, kind))


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(type[Any], kind))
