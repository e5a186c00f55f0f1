"""What errors become over HTTP."""

import pytest

from diffuserve.api.openai.resources import OpenAIError
from diffuserve.api.problems import openai_error, problem_of
from diffuserve.domain import errors
from diffuserve.domain.errors import DiffuserveError, InvalidParams, LeaseLost, QueueFull, ServerUnavailable

WORDS = "something went wrong"


@pytest.mark.parametrize(
    ("error", "status", "is_retryable"),
    [
        (InvalidParams("width", 3, WORDS), 422, False),
        (errors.ModelNotCapable("width", 3, WORDS), 422, False),
        (errors.ImageTooLarge("size", 3, WORDS), 413, False),
        (errors.IdempotencyMismatch(WORDS), 422, False),
        (errors.Conflict(WORDS), 409, False),
        (errors.NotFinished(WORDS), 409, False),
        (LeaseLost("job_1"), 409, False),
        (errors.UploadMissing(WORDS), 409, False),
        (errors.JobNotFound(WORDS), 404, False),
        (errors.ModelNotFound(WORDS), 404, False),
        (errors.Unauthorized(WORDS), 401, False),
        (errors.Forbidden(WORDS), 403, False),
        (errors.BandNotAllowed(WORDS), 403, False),
        (QueueFull(WORDS), 429, True),
        (errors.RateLimited(WORDS), 429, True),
        (errors.BacklogFull(WORDS), 503, True),
        (errors.TooLarge(WORDS), 413, False),
        (ServerUnavailable(WORDS), 503, True),
        (errors.EngineClosed(WORDS), 500, False),
    ],
)
def test_each_error_has_its_status(error: DiffuserveError, status: int, is_retryable: bool) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.code, problem.is_retryable) == (status, error.code, is_retryable)
    assert problem.detail == str(error)
    assert ("retry-after" in problem.headers) is is_retryable


@pytest.mark.parametrize(("seconds", "header"), [(0.2, "1"), (1.2, "2"), (None, "1")])
def test_retry_after_is_in_whole_seconds_and_never_too_early(seconds: float | None, header: str) -> None:
    assert problem_of(QueueFull(WORDS, retry_after=seconds)).headers["retry-after"] == header


def test_other_exceptions_tell_nothing() -> None:
    problem = problem_of(RuntimeError("the password is 1234"))
    assert problem.status == 500
    assert "1234" not in problem.detail


@pytest.mark.parametrize(
    ("error", "kind", "param"),
    [
        (InvalidParams("size", 3, WORDS), "invalid_request_error", "size"),
        (errors.Unauthorized(WORDS), "authentication_error", None),
        (errors.Forbidden(WORDS), "permission_error", None),
        (QueueFull(WORDS), "rate_limit_error", None),
        (ServerUnavailable(WORDS), "server_error", None),
    ],
)
def test_openais_envelope_has_openais_kinds(error: DiffuserveError, kind: str, param: str | None) -> None:
    expected = OpenAIError(message=str(error), type=kind, param=param, code=error.code)
    assert openai_error(problem_of(error)) == expected
