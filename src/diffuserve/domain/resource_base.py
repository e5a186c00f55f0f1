"""Base of the API's responses, which the server writes and the client reads by one definition.

The classes here are plain dataclasses: orjson writes them, pydantic reads them in the client, and the OpenAPI
document takes their descriptions from the docstrings and from `metadata={"description": ...}`.
"""

from dataclasses import dataclass, field


class Resource:
    """JSON object of a response: always written with every field, never with another."""


@dataclass(frozen=True, kw_only=True)
class Page(Resource):
    """Page of a list, newest first."""

    data: tuple[object, ...]
    has_more: bool
    next: str | None = field(metadata={"description": "The `after` of the next page."})
