"""Reading a batch's body: JSON with a list of items, or JSON lines."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from diffuserve.api.batches.schemas import (
    MAX_INLINE_ITEMS,
    MAX_ITEMS,
    BatchBody,
    BatchItem,
    BatchOptions,
    BatchQuery,
)
from diffuserve.api.config import ApiConfig

Item = bytes | Mapping[str, Any]
"""A line of JSON, or what stood in a list."""

JSON_LINES = ("application/jsonl", "application/x-ndjson")


async def read_batch(
    request: Request, query: BatchQuery, config: ApiConfig
) -> tuple[BatchOptions, list[Item], str]:
    """Options, items not yet checked, and what errors call them.

    Raises `RequestValidationError`, and 413 for a body over the limit of its kind.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in JSON_LINES:
        body = await _read(request, config.max_batch_bytes)
        return query.options(), _lines(body), "lines"
    if query.model_fields_set:
        raise refused(("query",), "options stand in the body, unless it is JSON lines")
    return *_inline(await _read(request, config.max_body_bytes)), "items"


def refused(way: tuple[str | int, ...], message: str) -> RequestValidationError:
    return RequestValidationError([{"type": "value_error", "loc": way, "msg": message}])


async def _read(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            hint = "more items fit when they are sent as JSON lines"
            raise HTTPException(413, f"the body has more than {max_bytes:,} bytes; {hint}")
    return bytes(body)


def _inline(body: bytes) -> tuple[BatchOptions, list[Item]]:
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise refused(("body",), "is not JSON") from error
    if not isinstance(values, dict) or not isinstance(items := values.pop("items", None), list):
        raise refused(("body", "items"), "give a list of items")
    try:
        options = BatchOptions.model_validate(values)
    except ValidationError as error:
        problems = [one | {"loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        raise RequestValidationError(problems) from error
    return options, _counted(items, MAX_INLINE_ITEMS, ("body", "items"))


def _lines(body: bytes) -> list[Item]:
    lines = (line for line in body.split(b"\n") if line.strip())
    return _counted(list(islice(lines, MAX_ITEMS + 1)), MAX_ITEMS, ("body",))


def _counted(items: list[Any], most: int, way: tuple[str, ...]) -> list[Item]:
    if not items:
        raise refused(way, "has no items")
    if len(items) > most:
        raise refused(way, f"has more than {most:,} items")
    return items


def _schema() -> dict[str, Any]:
    """Of a body in JSON, with everything that it refers to in its place."""
    schema = BatchBody.model_json_schema()
    shapes = schema.pop("$defs")

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(one) for one in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return inlined(shapes[part["$ref"].rpartition("/")[2]])
        return {name: inlined(value) for name, value in part.items()}

    inline: dict[str, Any] = inlined(schema)
    return inline


BODIES = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _schema()},
            JSON_LINES[0]: {"schema": {"type": "string", "description": BatchItem.__doc__}},
        },
    }
}
