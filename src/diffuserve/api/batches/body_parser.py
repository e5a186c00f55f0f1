"""Parsing of a batch's body: JSON with a list of items, or JSON lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from diffuserve.api.batches.request_bodies import (
    MAX_INLINE_ITEMS,
    MAX_ITEMS,
    BatchBody,
    BatchItem,
    BatchOptions,
    BatchQuery,
)
from diffuserve.api.config import ApiConfig

Item = bytes | Mapping[str, Any]
"""A line of JSON, or a value of a JSON list."""

Location = tuple[str | int, ...]
"""Path to a value in a request, as pydantic gives it: `("body", "items", 3)`."""

_JSON_LINES = ("application/jsonl", "application/x-ndjson")


@dataclass(frozen=True)
class BatchRequest:
    """Options of a batch and its items, which are not checked yet.

    `items_name` is what errors call the list of items: `items` in JSON, `lines` in JSON lines.
    """

    options: BatchOptions
    items: Sequence[Item]
    items_name: str

    def location(self, number: int) -> Location:
        """Return the location of item `number`, counted from 0."""
        return ("body", self.items_name, number)


async def read_batch(request: Request, query: BatchQuery, config: ApiConfig) -> BatchRequest:
    """Read the body and check the options.

    Raise `RequestValidationError`, and `HTTPException` 413 for a body over the limit of its content type.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type in _JSON_LINES:
        body = await _read(request, config.max_batch_bytes)
        return BatchRequest(query.options(), _split_lines(body), "lines")
    if query.model_fields_set:
        raise validation_error(("query",), "options belong in the body, unless it is JSON lines")
    return _parse_json(await _read(request, config.max_body_bytes))


def validation_error(location: Location, message: str) -> RequestValidationError:
    """Build the error of one value in the request."""
    return RequestValidationError([{"type": "value_error", "loc": location, "msg": message}])


def nested_errors(location: Location, error: ValidationError) -> RequestValidationError:
    """Build the errors of a value whose fields pydantic has rejected."""
    errors = [field | {"loc": (*location, *field["loc"])} for field in error.errors(include_url=False)]
    return RequestValidationError(errors)


async def _read(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            hint = "more items fit when they are sent as JSON lines"
            raise HTTPException(413, f"the body has more than {max_bytes:,} bytes; {hint}")
    return bytes(body)


def _parse_json(body: bytes) -> BatchRequest:
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise validation_error(("body",), "is not JSON") from error
    if not isinstance(values, dict) or not isinstance(items := values.pop("items", None), list):
        raise validation_error(("body", "items"), "must be a list of items")
    try:
        options = BatchOptions.model_validate(values)
    except ValidationError as error:
        raise nested_errors(("body",), error) from error
    _check_count(items, MAX_INLINE_ITEMS, ("body", "items"))
    return BatchRequest(options, items, "items")


def _split_lines(body: bytes) -> list[bytes]:
    lines = (line for line in body.split(b"\n") if line.strip())
    # One line above the limit is enough to see that there are too many.
    items = list(islice(lines, MAX_ITEMS + 1))
    _check_count(items, MAX_ITEMS, ("body",))
    return items


def _check_count(items: Sequence[object], max_items: int, location: Location) -> None:
    if not items:
        raise validation_error(location, "has no items")
    if len(items) > max_items:
        raise validation_error(location, f"has more than {max_items:,} items")


def _body_schema() -> dict[str, Any]:
    """Build the schema of a body in JSON, with every reference replaced by what it refers to."""
    schema = BatchBody.model_json_schema()
    definitions = schema.pop("$defs")

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(element) for element in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return inlined(definitions[part["$ref"].rpartition("/")[2]])
        return {name: inlined(value) for name, value in part.items()}

    inline: dict[str, Any] = inlined(schema)
    return inline


# The route reads the raw body, so FastAPI cannot derive this part of the document.
OPENAPI_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _body_schema()},
            _JSON_LINES[0]: {"schema": {"type": "string", "description": BatchItem.__doc__}},
        },
    }
}
