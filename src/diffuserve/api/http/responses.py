"""JSON responses, written by orjson from plain values and dataclasses, without validation."""

from collections.abc import Mapping

import orjson
from fastapi import Response


def json_response(
    content: object,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    """Build a response whose body is `content` as JSON."""
    return Response(orjson.dumps(content), status, headers, media_type)
