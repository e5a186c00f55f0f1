"""Errors in AUTOMATIC1111's form."""

from fastapi import Response

from diffuserve.api.http.problem import Problem
from diffuserve.api.http.responses import json_response


def error_response(problem: Problem) -> Response:
    """Build an error response; clients show `detail` or `errors`."""
    content = {"error": problem.code, "detail": problem.detail, "body": "", "errors": problem.detail}
    return json_response(content, problem.status, problem.headers)
