"""Parsing of a batch's body: JSON with a list of items, or JSON lines."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, overload

from fastapi import Request
from pydantic import ValidationError

from diffuserve.api.batches.file_batch_body import INPUT_FILE, FileBatchBody
from diffuserve.api.batches.request_bodies import (
    MAX_INLINE_ITEMS,
    MAX_ITEMS,
    BatchBody,
    BatchItem,
    BatchOptions,
    BatchQuery,
)
from diffuserve.api.door.json_route import content_type_of, is_json, unsupported_media_type
from diffuserve.api.door.upload import BatchUploads, Body
from diffuserve.api.http.field_errors import Location, nested_errors, validation_error
from diffuserve.api.http.json_body import UnreadableJson, parsed_json
from diffuserve.api.http.openapi import inlined_schema

Item = bytes | Mapping[str, Any]
"""A line of JSON, or a value of a JSON list."""

_JSON_LINES = ("application/jsonl", "application/x-ndjson")
_MAX_VALUES_PER_ITEM = 100  # on average: an item has twenty, and its prompt may have many commas
_MAX_LINE_BYTES = 262_144  # far more than a valid item has; parsing a long line would hold up everybody


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


@asynccontextmanager
async def received_batch(
    request: Request, query: BatchQuery, uploads: BatchUploads, tenant_id: str
) -> AsyncIterator[BatchRequest | FileBatchBody]:
    """Receive the body, wait for one of the tenant's slots, check the options, and yield the request.

    JSON that names a file of lines is a batch of OpenAI's API, and errors are told as that does. Raise
    `RequestValidationError`, what `BatchUploads.received` raises, and `HTTPException` 415 for another content
    type than JSON and JSON lines.
    """
    content_type = content_type_of(request)
    is_lines = content_type in _JSON_LINES
    if not is_lines and not is_json(content_type):
        raise unsupported_media_type(request, "application/json", _JSON_LINES[0])
    if not is_lines and query.model_fields_set:
        raise validation_error(("query",), "options belong in the body, unless it is JSON lines")
    max_bytes = uploads.config.max_batch_bytes if is_lines else uploads.config.max_body_bytes
    async with uploads.received(request, tenant_id, max_bytes) as body, uploads.slot(tenant_id):
        if is_lines:
            yield BatchRequest(query.options(), await asyncio.to_thread(_split_lines, body), "lines")
        else:
            yield _parse_json(request, body[:])


def _parse_json(request: Request, body: bytes) -> BatchRequest | FileBatchBody:
    try:
        values = parsed_json(body, BatchBody, _MAX_VALUES_PER_ITEM * MAX_INLINE_ITEMS)
    except UnreadableJson as error:
        raise validation_error(("body",), str(error)) from error
    if isinstance(values, dict) and INPUT_FILE in values:
        request.state.is_openai = True
        return _file_batch(values)
    if not isinstance(values, dict) or not isinstance(items := values.pop("items", None), list):
        raise validation_error(("body", "items"), "must be a list of items")
    try:
        options = BatchOptions.model_validate(values)
    except ValidationError as error:
        raise nested_errors(("body",), error, BatchBody) from error
    _check_count(items, MAX_INLINE_ITEMS, ("body", "items"))
    return BatchRequest(options, items, "items")


def _file_batch(values: Any) -> FileBatchBody:
    try:
        return FileBatchBody.model_validate(values)
    except ValidationError as error:
        raise nested_errors(("body",), error, FileBatchBody) from error


class _Lines(Sequence[bytes]):
    """Lines of a body, read when they are asked for: a large body stays in its file."""

    def __init__(self, body: Body, spans: Sequence[tuple[int, int]]) -> None:
        self._body = body
        self._spans = spans

    def __len__(self) -> int:
        return len(self._spans)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> "_Lines": ...
    def __getitem__(self, index: int | slice) -> "bytes | _Lines":
        if isinstance(index, slice):
            return _Lines(self._body, self._spans[index])
        start, end = self._spans[index]
        return self._body[start:end]


def _split_lines(body: Body) -> Sequence[bytes]:
    spans: list[tuple[int, int]] = []
    # Blank lines count as well, else a body of nothing else would take long.
    for number, (start, end) in enumerate(_line_spans(body)):
        if len(spans) > MAX_ITEMS or number > 2 * MAX_ITEMS:
            raise validation_error(("body",), f"has more than {MAX_ITEMS:,} items, or twice as many lines")
        if end - start > _MAX_LINE_BYTES:
            message = f"has {end - start:,} bytes; at most {_MAX_LINE_BYTES:,} are allowed"
            raise validation_error(("body", "lines", len(spans)), message)
        if body[start:end].strip():
            spans.append((start, end))
    _check_count(spans, MAX_ITEMS, ("body",))
    return _Lines(body, spans)


def _line_spans(body: Body) -> Iterator[tuple[int, int]]:
    """Yield start and end of each line, without its line feed."""
    start, length = 0, len(body)
    while start < length:
        found = body.find(b"\n", start)
        end = length if found < 0 else found
        yield start, end
        start = end + 1


def _check_count(items: Sequence[object], max_items: int, location: Location) -> None:
    if not items:
        raise validation_error(location, "has no items")
    if len(items) > max_items:
        raise validation_error(location, f"has more than {max_items:,} items")


# The route reads the raw body, so FastAPI cannot derive this part of the document.
OPENAPI_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"anyOf": [inlined_schema(BatchBody), inlined_schema(FileBatchBody)]}
            },
            _JSON_LINES[0]: {"schema": {"type": "string", "description": BatchItem.__doc__}},
        },
    }
}
