"""Reading the API's resources from JSON. Fields that a newer server adds are ignored.

A server is not trusted with what a path is made of: such fields have types of `domain.path_parts`.
"""

from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from diffuserve.domain.codec import from_json
from diffuserve.domain.errors import ServerRefused
from diffuserve.domain.resource_base import Resource
from diffuserve.domain.text.shortened import shortened

Value = TypeVar("Value")


def decode(kind: type[Value], content: bytes | str) -> Value:
    """Return the dataclass `kind` that `content` holds as JSON. Raise `ServerRefused` if it holds none."""
    try:
        return from_json(kind, content)
    except ValidationError as error:
        raise ServerRefused(_told(kind, error)) from error


def _told(kind: type[Any], error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where, found = ".".join(map(str, first["loc"])) or "all of it", shortened(first["input"])
    return f"the server's response is no {kind.__name__}: {where}: {first['msg']} ({found})"


def encode(resource: Resource) -> str:
    """Return the resource as indented JSON, in the form in which the API writes it."""
    return orjson.dumps(resource, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
