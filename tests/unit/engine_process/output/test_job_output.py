"""Failures and previews of a job, decided without an engine."""

import pytest

from diffuserve.domain.errors import (
    InvalidParams,
    NumericalFailure,
    OutOfMemory,
    OutputBlocked,
    RequestAborted,
    RequestFailed,
)
from diffuserve.engine_process.output.job_output import job_failure, preview_steps


@pytest.mark.parametrize(
    ("num_steps", "num_previews", "expected"),
    [(4, 0, []), (4, 1, [2]), (4, 3, [1, 2, 3]), (1, 3, []), (2, 3, [1]), (20, 3, [5, 10, 15])],
)
def test_previews_are_spread_evenly_and_never_follow_the_last_step(
    num_steps: int, num_previews: int, expected: list[int]
) -> None:
    assert preview_steps(num_steps, num_previews) == expected


@pytest.mark.parametrize(
    ("error", "code", "is_retryable"),
    [
        (InvalidParams("width", 7, "no"), "invalid_params", False),
        (NumericalFailure("r", "NaN"), "numerical_failure", False),
        (OutOfMemory("r", "too large"), "out_of_memory", False),
        (OutputBlocked("r", "nsfw"), "output_blocked", False),
        (RequestAborted("r", "aborted"), RequestAborted.code, False),
        (RequestFailed("r", "odd"), "request_failed", True),
        (RuntimeError("odd"), "internal_error", True),
        (ValueError("odd"), "internal_error", False),
    ],
)
def test_a_failure_is_retryable_unless_it_would_repeat(
    error: Exception, code: str, is_retryable: bool
) -> None:
    failed = job_failure("j1-1", error)
    assert (failed.attempt, failed.code, failed.retryable) == ("j1-1", code, is_retryable)


def test_an_unexpected_error_is_named_in_the_message() -> None:
    assert job_failure("j", KeyError("width")).message == "KeyError: 'width'"
