"""Parsing of JSON that clients send, in bounded time: Python runs nothing else meanwhile, in any thread."""

import json
from typing import Any

from pydantic import BaseModel

from diffuserve.api.http.field_errors import with_few_unknown

MAX_VALUES = 20_000
"""Values of a body, far more than a request has; each costs time in checks, and as an error much more."""


class UnreadableJson(ValueError):
    """Raised for what is not JSON, or has too many values; the message continues `body: …`."""


def parsed_json(body: bytes, model: type[BaseModel] | None = None, max_values: int = MAX_VALUES) -> Any:
    """Return what the JSON says, of fields that `model` does not know the first. Raise `UnreadableJson`."""
    num_values = sum(map(body.count, (b",", b"[", b"{")))  # or more, as texts have commas too
    if num_values > max_values:
        raise UnreadableJson(f"has about {num_values:,} values; at most {max_values:,} are read")
    try:
        values = json.loads(body)  # which, other than orjson, changes no large number
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(_reason(error)) from error
    return values if model is None else with_few_unknown(values, model)


def _reason(error: ValueError | RecursionError) -> str:
    match error:
        case json.JSONDecodeError():
            told = f"{error.msg[:1].lower()}{error.msg[1:]}"
            return f"is not JSON: {told} (line {error.lineno}, column {error.colno})"
        case UnicodeDecodeError():
            return f"is not UTF-8: {error.reason} at byte {error.start}"
        case RecursionError():
            return "is nested too deeply"
        case _:
            return "has a number of thousands of digits"
