"""Errors over HTTP: RFC 9457 problems, and OpenAI's error envelope on OpenAI's paths.

Each `DiffuserveError` has its status; any other exception is a 500 that reveals only the request's id.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPMethod, HTTPStatus
from typing import Any, cast

from fastapi import FastAPI, Response, WebSocket
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.routing import Match
from starlette.websockets import WebSocketState

from diffuserve.api.http.field_errors import FieldError, described, field_error
from diffuserve.api.http.negotiation import prefers_html
from diffuserve.api.http.openai_errors import OpenAIError, OpenAIErrorEnvelope
from diffuserve.api.http.other_doors import door_at
from diffuserve.api.http.parts import part_of
from diffuserve.api.http.problem import Problem
from diffuserve.api.http.responses import json_response
from diffuserve.domain.errors import (
    DiffuserveError,
    ImageBlocked,
    InvalidParams,
    LeaseLost,
    OutputBlocked,
    PromptBlocked,
    RangeNotSatisfiable,
    TooLarge,
    Unauthorized,
)
from diffuserve.telemetry.log_fields import once_a_minute
from diffuserve.telemetry.metrics import ControlMetrics
from diffuserve.web.pages import Pages

log = logging.getLogger(__name__)

_INTERNAL_ERROR = 1011  # close code of RFC 6455
_ROOM = re.compile(r"/v1/([^/]*)(/.*)?")
_OPENAI_BATCH = re.compile(r"/v1/batches/batch_file_.*")
_SHARED_PATH = re.compile(r"/v1/(batches|files)(/.*)?")
_OPENAI_HEADER = "x-stainless-lang"  # which OpenAI's clients send, in whatever language
OWN_ROOMS = frozenset(
    {"adapters", "batches", "files", "jobs", "leases", "operations"}
    | {"plan", "session", "usage", "webhooks", "workers"}
)
"""Beginnings of this server's own paths after `/v1/`; others are OpenAI's, or its client asks for them."""

_HTTP_CODES: Mapping[int, str] = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    413: TooLarge.code,
    415: "unsupported_media_type",
}
_OPENAI_CODES: Mapping[str, str] = dict.fromkeys(
    (PromptBlocked.code, ImageBlocked.code, OutputBlocked.code), "moderation_blocked"
)
_OPENAI_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


@dataclass(frozen=True, kw_only=True)
class ProblemResource:
    """RFC 9457 problem with additional fields; some problems have more of them."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    retryable: bool
    request_id: str


PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {"application/problem+json": {"schema": TypeAdapter(ProblemResource).json_schema()}},
    }
    for status, description in (
        ("4XX", "Rejected; the problem gives the reason."),
        ("5XX", "Failed; retry later."),
    )
}


SHARED_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {**response, "model": OpenAIErrorEnvelope} for status, response in PROBLEM_RESPONSES.items()
}
"""Of paths that both APIs have: OpenAI's clients get that API's errors."""


def problem_of(error: Exception) -> Problem:
    """Return the problem that an exception becomes."""
    if isinstance(error, DiffuserveError):
        return _problem_of_known(error)
    if isinstance(error, RequestValidationError | WebSocketRequestValidationError):
        return _problem_of_invalid(error)
    if isinstance(error, HTTPException):
        code = _HTTP_CODES.get(error.status_code, "http_error")
        allow = (error.headers or {}).get("Allow")
        return Problem(status=error.status_code, code=code, detail=str(error.detail), allow=allow)
    return Problem(
        status=500,
        code="internal_error",
        detail="internal server error; the server's log has it under this request_id",
        is_retryable=True,
    )


def problem_response(problem: Problem, connection: HTTPConnection) -> Response:
    """Build the error response, in OpenAI's format on OpenAI's paths, and in another door's on its own."""
    path = connection.url.path
    if is_openai_path(path) or (_SHARED_PATH.fullmatch(path) and speaks_openai(connection)):
        return openai_response(problem)
    if door := door_at(connection):
        return door.respond(problem)
    resource = ProblemResource(
        type=f"urn:diffuserve:problem:{problem.code}",
        title=HTTPStatus(problem.status).phrase,
        status=problem.status,
        detail=problem.detail,
        instance=path,
        code=problem.code,
        retryable=problem.is_retryable,
        request_id=connection.state.request_id,
    )
    errors = {"errors": problem.errors} if problem.errors else {}
    content = {**vars(resource), **problem.extra, **errors}
    return json_response(content, problem.status, problem.headers, "application/problem+json")


def is_openai_path(path: str) -> bool:
    """Return whether errors at this path have OpenAI's format, whether there is a route or not."""
    room = _ROOM.fullmatch(path)
    return room is not None and (room[1] not in OWN_ROOMS or _OPENAI_BATCH.fullmatch(path) is not None)


def speaks_openai(connection: HTTPConnection) -> bool:
    """Return whether OpenAI's client sends a request, or its body is one of that API.

    It decides about paths that both APIs have: `/v1/batches` and `/v1/files`.
    """
    return _OPENAI_HEADER in connection.headers or getattr(connection.state, "is_openai", False)


def add_problem_handlers(app: FastAPI) -> None:
    """Handle every error that routes raise on purpose; the middleware handles all others."""
    kinds = (DiffuserveError, RequestValidationError, WebSocketRequestValidationError, HTTPException)
    for kind in kinds:
        app.add_exception_handler(kind, cast(Any, _on_error))  # typed for requests or WebSockets, not both


async def _on_error(connection: HTTPConnection, error: Exception) -> Response | None:
    """Return the error response, which Starlette sends. A WebSocket is refused or closed here."""
    if isinstance(error, LeaseLost):
        part_of(connection, ControlMetrics).fenced_writes.inc()
    if isinstance(connection, Request) and _is_lost_person(error, connection):
        return await part_of(connection, Pages).index(connection, 404)
    problem = problem_of(_routed(error, connection) if isinstance(error, HTTPException) else error)
    if problem.status == 500:
        log.error("request %s failed", connection.state.request_id, exc_info=error)
    if isinstance(error, Unauthorized):
        client = connection.client.host if connection.client else None
        log.warning("API key refused", extra=once_a_minute(reason=str(error), client=client))
    response = problem_response(problem, connection)
    if not isinstance(connection, WebSocket):
        return response
    await _close_websocket(connection, response, problem)
    return None  # Starlette would send a response once more


def _is_lost_person(error: Exception, request: Request) -> bool:
    """Return whether a browser asks for a page at a path that is none."""
    return (
        isinstance(error, HTTPException)
        and error.status_code == 404
        and request.method in {"GET", "HEAD"}
        and not request.url.path.startswith("/v1/")
        and door_at(request) is None
        and prefers_html(request.headers.get("accept", ""))
    )


def _routed(error: HTTPException, connection: HTTPConnection) -> HTTPException:
    """Return the error; one of Starlette's router is told in words that help."""
    if error.detail != HTTPStatus(error.status_code).phrase:
        return error
    path, headers = connection.url.path, error.headers
    told = error.detail
    if error.status_code == 405 and headers:
        allowed = ", ".join(_methods_at(connection))
        told = f"{connection.scope['method']} is not possible at {path}; it takes {allowed}"
        headers = {**headers, "Allow": allowed}
    elif error.status_code == 404 and path.startswith("/v1/images"):
        told = (
            f"{path} is not implemented; images are generated by POST /v1/images/generations, and edited by "
            "POST /v1/images/edits"
        )
    elif error.status_code == 404 and path.startswith("/v1/videos"):
        told = f"{path} is not implemented; clips are generated by POST /v1/videos"
    elif error.status_code == 404 and is_openai_path(path):
        told = (
            f"{path} is not implemented; of OpenAI's API this server has images, videos, files, batches "
            "and models"
        )
    elif error.status_code == 404:
        told = f"there is nothing at {path}; GET / tells what this server offers"
    return HTTPException(error.status_code, told, headers)


def _methods_at(connection: HTTPConnection) -> list[str]:
    """Return the methods that the request's path takes; the router names those of its first route alone."""
    scope, routes = connection.scope, connection.app.routes
    return [
        method.value
        for method in HTTPMethod
        if any(route.matches({**scope, "method": method.value})[0] is Match.FULL for route in routes)
    ]


async def _close_websocket(websocket: WebSocket, response: Response, problem: Problem) -> None:
    if websocket.application_state is WebSocketState.CONNECTING:
        await websocket.send_denial_response(response)
    else:
        await websocket.close(_INTERNAL_ERROR, problem.code)


def _problem_of_known(error: DiffuserveError) -> Problem:
    is_retryable, retry_after = error.is_retryable, getattr(error, "retry_after", None)
    return Problem(
        status=error.status or 500,
        code=error.code,
        detail=str(error),
        is_retryable=is_retryable,
        retry_after=(retry_after or 1.0) if is_retryable else retry_after,
        errors=_field_errors(error),
        extra={name: getattr(error, name) for name in error.facts},
        size=error.size if isinstance(error, RangeNotSatisfiable) else None,
    )


def _field_errors(error: DiffuserveError) -> tuple[FieldError, ...]:
    if isinstance(error, ImageBlocked):
        return (FieldError(field=error.field, message="is blocked by the policy of this server"),)
    if not isinstance(error, InvalidParams):
        return ()
    return (FieldError(field=error.field, message=error.remedy),)


def _problem_of_invalid(error: RequestValidationError | WebSocketRequestValidationError) -> Problem:
    errors = error.errors()
    detail = "; ".join(map(described, errors))
    return Problem(status=422, code=InvalidParams.code, detail=detail, errors=tuple(map(field_error, errors)))


def openai_response(problem: Problem) -> Response:
    """Build an error response in OpenAI's format, in which invalid input is 400.

    OpenAI's SDK retries 409, 429 and 5xx unless `x-should-retry` forbids it.
    """
    status = openai_status(problem)
    should_retry = "true" if problem.is_retryable else "false"
    headers = problem.headers | {"x-should-retry": should_retry}
    return json_response(OpenAIErrorEnvelope(error=openai_error(problem)), status, headers)


def openai_status(problem: Problem) -> int:
    """Return the status of a problem in OpenAI's API, in which invalid input is 400."""
    return 400 if problem.status in (413, 422) else problem.status


def openai_error(problem: Problem) -> OpenAIError:
    """Convert a problem to OpenAI's error object."""
    fallback = "server_error" if problem.status >= 500 else "invalid_request_error"
    return OpenAIError(
        message=problem.detail,
        type=_OPENAI_TYPES.get(problem.status, fallback),
        param=problem.errors[0].field if problem.errors else None,
        code=_OPENAI_CODES.get(problem.code, problem.code),
    )
