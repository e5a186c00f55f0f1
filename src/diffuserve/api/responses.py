"""JSON answers, written by orjson from plain values and dataclasses."""

from collections.abc import Mapping
from datetime import UTC, datetime

import orjson
from fastapi import Response


def json_response(
    content: object,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    return Response(orjson.dumps(content), status, headers, media_type)


def rfc3339(seconds: float | None) -> str | None:
    """Seconds since the epoch as a time in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
