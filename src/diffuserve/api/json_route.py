"""Routes that read JSON, and nothing that a browser would send as a form or as text."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from diffuserve.api.field_errors import explained


class JsonRoute(APIRoute):
    """Route that refuses a body of another content type than JSON with 415, if it reads one.

    Errors in the body say where it is not JSON, and what unknown fields may mean.

    Any page may send a form or plain text to any server; a browser asks the server first (CORS) before it
    sends JSON for a page of another site.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that handles a request."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        body = self.body_field.field_info.annotation
        model = body if isinstance(body, type) and issubclass(body, BaseModel) else None

        async def handle_json(request: Request) -> Response:
            if not is_json(content_type_of(request)):
                raise unsupported_media_type(request, "application/json")
            try:
                return await handle(request)
            except RequestValidationError as error:
                raise explained(error, model) from error
            except HTTPException as error:
                raise _unreadable(error) from error

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
    told = f"content type {sent!r} is not read here" if sent else "the request has no Content-Type"
    remedy = " or ".join(f"Content-Type: {content_type}" for content_type in wanted)
    return HTTPException(415, f"{told}; send {remedy} (curl: -H 'content-type: {wanted[0]}')")


def _unreadable(error: HTTPException) -> HTTPException:
    """Return the error; that of a body which is no text, or nested too deeply, says so."""
    cause = error.__cause__
    if isinstance(cause, UnicodeDecodeError):
        return HTTPException(
            error.status_code, f"the body is not UTF-8: {cause.reason} at byte {cause.start}"
        )
    if isinstance(cause, RecursionError):
        return HTTPException(error.status_code, "the body is nested too deeply")
    return error
