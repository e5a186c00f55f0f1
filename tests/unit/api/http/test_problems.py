"""Errors over HTTP."""

import pytest

from diffuserve.api.http.openai_errors import OpenAIError
from diffuserve.api.http.problems import openai_error, problem_of
from diffuserve.domain import errors
from diffuserve.domain.errors import DiffuserveError, InvalidParams, LeaseLost, QueueFull, ServerUnavailable

DETAIL = "something went wrong"


@pytest.mark.parametrize(
    ("error", "status", "is_retryable"),
    [
        (InvalidParams("width", 3, DETAIL), 422, False),
        (errors.ModelNotCapable("width", 3, DETAIL), 422, False),
        (errors.ImageTooLarge("size", 3, DETAIL), 413, False),
        (errors.IdempotencyMismatch(DETAIL), 422, False),
        (errors.Conflict(DETAIL), 409, False),
        (errors.NotFinished(DETAIL), 409, False),
        (LeaseLost("job_1"), 409, False),
        (errors.UploadMissing(DETAIL), 409, False),
        (errors.JobNotFound(DETAIL), 404, False),
        (errors.ModelNotFound(DETAIL), 404, False),
        (errors.Unauthorized(DETAIL), 401, False),
        (errors.Forbidden(DETAIL), 403, False),
        (errors.BandNotAllowed(DETAIL), 403, False),
        (QueueFull(DETAIL), 429, True),
        (errors.RateLimited(DETAIL), 429, True),
        (errors.TooManyWaits(DETAIL), 429, True),
        (errors.BacklogFull(DETAIL), 503, True),
        (errors.TooLarge(DETAIL), 413, False),
        (ServerUnavailable(DETAIL), 503, True),
        (errors.EngineClosed(DETAIL), 500, False),
    ],
)
def test_each_error_has_its_status(error: DiffuserveError, status: int, is_retryable: bool) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.code, problem.is_retryable) == (status, error.code, is_retryable)
    assert problem.detail == str(error)
    assert ("retry-after" in problem.headers) is is_retryable


@pytest.mark.parametrize(("seconds", "header"), [(0.2, "1"), (1.2, "2"), (None, "1")])
def test_retry_after_is_rounded_up_to_whole_seconds(seconds: float | None, header: str) -> None:
    assert problem_of(QueueFull(DETAIL, retry_after=seconds)).headers["retry-after"] == header


def test_other_exceptions_reveal_nothing() -> None:
    problem = problem_of(RuntimeError("the password is 1234"))
    assert problem.status == 500
    assert "1234" not in problem.detail


@pytest.mark.parametrize(
    ("error", "kind", "param"),
    [
        (InvalidParams("size", 3, DETAIL), "invalid_request_error", "size"),
        (errors.Unauthorized(DETAIL), "authentication_error", None),
        (errors.Forbidden(DETAIL), "permission_error", None),
        (QueueFull(DETAIL), "rate_limit_error", None),
        (ServerUnavailable(DETAIL), "server_error", None),
    ],
)
def test_openais_envelope_has_openais_error_types(
    error: DiffuserveError, kind: str, param: str | None
) -> None:
    expected = OpenAIError(message=str(error), type=kind, param=param, code=error.code)
    assert openai_error(problem_of(error)) == expected
