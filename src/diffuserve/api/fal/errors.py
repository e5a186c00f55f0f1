"""Errors in fal's form: `detail` is a list of what is wrong with the arguments, or a sentence."""

from fastapi import Response

from diffuserve.api.fal.results import error_type
from diffuserve.api.http.problem import Problem
from diffuserve.api.http.responses import json_response

_TIMEOUT_TYPE = "x-fal-request-timeout-type"


def error_response(problem: Problem) -> Response:
    """Build an error response. Fal's client does not retry one that says whose timeout is over."""
    kind = error_type(problem.code)
    headers = problem.headers | {"x-fal-error-type": kind}
    if problem.status == 504:
        headers[_TIMEOUT_TYPE] = "user"
    wrong = [
        {"loc": ["body", *error.field.removeprefix("body.").split(".")], "msg": error.message, "type": kind}
        for error in problem.errors
    ]
    content = {"detail": wrong or problem.detail, "error_type": kind}
    return json_response(content, problem.status, headers)
