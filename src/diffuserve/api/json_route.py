"""Routes that read JSON, and nothing that a browser would send as a form or as text."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException


class JsonRoute(APIRoute):
    """Route that refuses a body of another content type than JSON with 415, if it reads one.

    Any page may send a form or plain text to any server; a browser asks the server first (CORS) before it
    sends JSON for a page of another site.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that handles a request."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def handle_json(request: Request) -> Response:
            if not is_json(content_type_of(request)):
                raise unsupported_media_type(request, "application/json")
            return await handle(request)

        return handle_json


def content_type_of(request: Request) -> str:
    """Return the media type of the body in lower case, without parameters; empty if there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Return whether a media type is JSON or built on it, such as `application/problem+json`."""
    return content_type.startswith("application/") and content_type.endswith(("/json", "+json"))


def unsupported_media_type(request: Request, *wanted: str) -> HTTPException:
    """Build the error of a body whose content type is none of those wanted."""
    sent = request.headers.get("content-type")
    remedy = " or ".join(f"Content-Type: {content_type}" for content_type in wanted)
    return HTTPException(415, f"content type {sent!r} is not read here; send {remedy}")
