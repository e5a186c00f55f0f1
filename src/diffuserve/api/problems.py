"""Errors over HTTP: RFC 9457 problems, and OpenAI's envelope on the paths that are OpenAI's.

One table says what each `DiffuserveError` becomes; all else is a 500 that tells nothing but its
request's id.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Response, WebSocket
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocketState

from diffuserve.api.responses import json_response
from diffuserve.domain.errors import (
    BacklogFull,
    Conflict,
    DiffuserveError,
    Forbidden,
    IdempotencyMismatch,
    ImageTooLarge,
    InvalidParams,
    LeaseLost,
    ModelNotFound,
    NotFound,
    PromptBlocked,
    QueueFull,
    RateLimited,
    Refused,
    ServerUnavailable,
    TooLarge,
    Unauthorized,
)

log = logging.getLogger(__name__)

_SOCKET_ERROR = 1011
OPENAI_PATHS = frozenset({"/v1/images/generations", "/v1/models"})

# The first that fits, so the narrower stands before the wider.
_STATUSES: Sequence[tuple[type[DiffuserveError], int, bool]] = (
    (ImageTooLarge, 413, False),
    (InvalidParams, 422, False),
    (PromptBlocked, 422, False),
    (IdempotencyMismatch, 422, False),
    (Conflict, 409, False),
    (ModelNotFound, 404, False),
    (NotFound, 404, False),
    (Unauthorized, 401, False),
    (QueueFull, 429, True),
    (RateLimited, 429, True),
    (BacklogFull, 503, True),
    (TooLarge, 413, False),
    (Forbidden, 403, False),
    (Refused, 403, False),
    (ServerUnavailable, 503, True),
)
_HTTP_CODES: Mapping[int, str] = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    413: TooLarge.code,
}
_OPENAI_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


@dataclass(frozen=True, kw_only=True)
class FieldError:
    """`field` is the way to it from the top of the body, or a parameter's or header's name."""

    field: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """An answer that is an error."""

    status: int
    code: str
    detail: str
    is_retryable: bool = False
    retry_after: float | None = None
    errors: tuple[FieldError, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def problem_of(error: Exception) -> Problem:
    if isinstance(error, DiffuserveError):
        return _known(error)
    if isinstance(error, RequestValidationError | WebSocketRequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        code = _HTTP_CODES.get(error.status_code, "http_error")
        return Problem(status=error.status_code, code=code, detail=str(error.detail))
    return Problem(
        status=500,
        code="internal_error",
        detail="an error of the server, which is in its log under this request_id",
        is_retryable=True,
    )


def problem_response(problem: Problem, connection: HTTPConnection) -> Response:
    path = connection.url.path
    if path in OPENAI_PATHS:
        return openai_response(problem)
    document = {
        "type": f"urn:diffuserve:problem:{problem.code}",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        "instance": path,
        "code": problem.code,
        "retryable": problem.is_retryable,
        "request_id": connection.state.request_id,
        **problem.extra,
    }
    if problem.errors:
        document["errors"] = problem.errors
    return json_response(document, problem.status, problem.headers, "application/problem+json")


def add_problem_handlers(app: FastAPI) -> None:
    """For all that routes raise on purpose; what they raise by mistake is caught at the edge."""
    kinds = (DiffuserveError, RequestValidationError, WebSocketRequestValidationError, HTTPException)
    for kind in kinds:
        app.add_exception_handler(kind, _on_error)


async def _on_error(connection: HTTPConnection, error: Exception) -> Response:
    """What it returns is sent to a request, and not to a WebSocket, which needs more care."""
    if isinstance(error, LeaseLost):
        connection.app.state.services.metrics.fenced_writes.inc()
    problem = problem_of(error)
    if problem.status == 500:
        log.error("request %s failed", connection.state.request_id, exc_info=error)
    answer = problem_response(problem, connection)
    if isinstance(connection, WebSocket):
        await _refuse(connection, answer, problem)
    return answer


async def _refuse(websocket: WebSocket, answer: Response, problem: Problem) -> None:
    if websocket.application_state is WebSocketState.CONNECTING:
        await websocket.send_denial_response(answer)
    else:
        await websocket.close(_SOCKET_ERROR, problem.code)


def _known(error: DiffuserveError) -> Problem:
    status, is_retryable = next(
        ((status, is_retryable) for kind, status, is_retryable in _STATUSES if isinstance(error, kind)),
        (500, False),
    )
    retry_after = getattr(error, "retry_after", None)
    return Problem(
        status=status,
        code=error.code,
        detail=str(error),
        is_retryable=is_retryable,
        retry_after=(retry_after or 1.0) if is_retryable else retry_after,
        errors=_field_errors(error),
        extra=_extra(error),
    )


def _extra(error: DiffuserveError) -> dict[str, str]:
    if isinstance(error, LeaseLost):
        return {"job_id": error.job_id}
    return {"category": error.category} if isinstance(error, PromptBlocked) else {}


def _field_errors(error: DiffuserveError) -> tuple[FieldError, ...]:
    if not isinstance(error, InvalidParams):
        return ()
    return (FieldError(field=error.field, message=error.remedy),)


def _invalid(error: RequestValidationError | WebSocketRequestValidationError) -> Problem:
    errors = tuple(_field_error(one) for one in error.errors())
    detail = "; ".join(f"{one.field}: {one.message}" for one in errors)
    return Problem(status=422, code=InvalidParams.code, detail=detail, errors=errors)


def _field_error(error: Mapping[str, Any]) -> FieldError:
    """`("body", "input", "width")` is `input.width`; `("query", "wait")` is `wait`."""
    if error["type"] == "json_invalid":
        return FieldError(field="body", message="is not JSON")
    place, *way = error["loc"]
    message = str(error["msg"]).removeprefix("Value error, ")
    return FieldError(field=".".join(map(str, way)) or str(place), message=message)


def openai_response(problem: Problem) -> Response:
    """Bad input is 400 there. The SDK repeats 409, 429 and 5xx of itself unless it is told not to."""
    status = 400 if problem.status in (413, 422) else problem.status
    should_retry = "true" if problem.is_retryable else "false"
    headers = problem.headers | {"x-should-retry": should_retry}
    return json_response({"error": openai_error(problem)}, status, headers)


def openai_error(problem: Problem) -> dict[str, str | None]:
    fallback = "server_error" if problem.status >= 500 else "invalid_request_error"
    return {
        "message": problem.detail,
        "type": _OPENAI_TYPES.get(problem.status, fallback),
        "param": problem.errors[0].field if problem.errors else None,
        "code": problem.code,
    }
