"""Responses of the protocol itself, after which the connection is closed."""

from http import HTTPStatus

import orjson

from diffuserve.api.http.problems import ProblemResource

Fault = tuple[HTTPStatus, str]
"""Why a connection ends: the status and the detail of its last response."""

UNREADABLE: Fault = (HTTPStatus.BAD_REQUEST, "this is no HTTP request that is served here")


def last_response(status: HTTPStatus, detail: str, code: str = "", retry_after: int | None = None) -> bytes:
    """Return the bytes of a problem after RFC 9457, after which the connection is closed."""
    code = code or status.name.lower()
    problem = ProblemResource(
        type=f"urn:diffuserve:problem:{code}",
        title=status.phrase,
        status=status,
        detail=detail,
        instance="",
        code=code,
        retryable=status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.SERVICE_UNAVAILABLE),
        request_id="",
    )
    body = orjson.dumps(problem)
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "content-type: application/problem+json",
        f"content-length: {len(body)}",
        *([] if retry_after is None else [f"retry-after: {retry_after}"]),
        "connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
