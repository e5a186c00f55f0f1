"""Routes that read only JSON, not bodies that a browser could send as a form or as text."""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from diffuserve.api.auth.dependencies import RequireRole
from diffuserve.api.http.field_errors import validation_error, with_suggestions
from diffuserve.api.http.json_body import UnreadableJson, parsed_json
from diffuserve.domain.codec import adapter_of

_MAX_ERRORS = 200
_LARGE_BYTES = 2_000  # a smaller body has few errors


class JsonRoute(APIRoute):
    """Route that reads a JSON body only from authorized callers, within their rate.

    FastAPI itself would parse the body before authentication. A body of another content type is refused with
    415. Errors say where the body is not JSON, and which known field an unknown one may mean.

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
        requirements = tuple(_requirements(self.dependant))

        async def handle_json(request: Request) -> Response:
            for require in requirements:
                await require(request)
            if not is_json(content_type_of(request)):
                raise unsupported_media_type(request, "application/json")
            try:
                return await handle(await _parsed(request, body, model))
            except RequestValidationError as error:
                errors = with_suggestions(error.errors(), model) if model else error.errors()
                raise RequestValidationError(errors) from error

        return handle_json


class _JsonRequest(Request):
    """Request whose body was parsed already."""

    values: Any = None

    async def json(self) -> Any:
        return self.values


async def _parsed(request: Request, annotation: Any, model: type[BaseModel] | None) -> Request:
    """Return the request with its body. Raise `RequestValidationError` if it is not JSON."""
    parsed = _JsonRequest(request.scope, request.receive)
    if body := await parsed.body():
        try:
            parsed.values = parsed_json(body, model)
        except UnreadableJson as error:
            raise validation_error(("body",), str(error)) from error
        if len(body) > _LARGE_BYTES:
            _refuse_many_errors(annotation, parsed.values)
    return parsed


def _refuse_many_errors(annotation: Any, values: Any) -> None:
    """Raise one error instead of hundreds: pydantic finds them fast, but FastAPI describes them slowly."""
    try:
        adapter_of(annotation).validate_python(values)
    except ValidationError as error:
        if error.error_count() > _MAX_ERRORS:
            raise validation_error(("body",), f"has {error.error_count():,} errors") from None


def _requirements(dependant: Dependant) -> Iterator[RequireRole]:
    """Yield the security requirements of a route and its dependencies."""
    for dependency in dependant.dependencies:
        if isinstance(dependency.call, RequireRole):
            yield dependency.call
        yield from _requirements(dependency)


def content_type_of(request: Request) -> str:
    """Return the media type of the body in lower case, without parameters; empty if there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Return whether a media type is JSON or built on it, such as `application/problem+json`."""
    return content_type.startswith("application/") and content_type.endswith(("/json", "+json"))


def unsupported_media_type(request: Request, *wanted: str) -> HTTPException:
    """Build the error of a body with an unsupported content type."""
    sent = request.headers.get("content-type")
    told = f"content type {sent!r} is not read here" if sent else "the request has no Content-Type"
    remedy = " or ".join(f"Content-Type: {content_type}" for content_type in wanted)
    return HTTPException(415, f"{told}; send {remedy} (curl: -H 'content-type: {wanted[0]}')")
