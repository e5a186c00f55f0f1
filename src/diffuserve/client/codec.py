"""Reading the API's resources from JSON. Fields that a newer server adds are ignored."""

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

import orjson
from pydantic import TypeAdapter

from diffuserve.domain.resources.base import Resource

Value = TypeVar("Value")


def decode(kind: type[Value], content: bytes | str) -> Value:
    """Return the dataclass `kind` that `content` holds as JSON. Raise pydantic's `ValidationError`."""
    value: Value = _adapter(cast(Hashable, kind)).validate_json(content)
    return value


def encode(resource: Resource) -> str:
    """Return the resource as indented JSON, in the form in which the API writes it."""
    return orjson.dumps(resource, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    """Build the adapter at its first use: that takes milliseconds, and a command uses few of them."""
    return TypeAdapter(cast(type[Any], kind))
