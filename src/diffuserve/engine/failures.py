"""Failures: the errors that callers see when a request fails."""

import logging

from diffuserve.domain.errors import (
    DiffuserveError,
    EngineClosed,
    NumericalFailure,
    OutOfMemory,
    RequestFailed,
)
from diffuserve.engine.model_runner import is_out_of_memory, without_frames

log = logging.getLogger(__name__)


def as_failure(request_id: str, cause: Exception) -> DiffuserveError:
    """Return the error that a request ends with, and log unexpected ones."""
    if isinstance(cause, RequestFailed | EngineClosed):
        return cause
    kind = RequestFailed
    if is_out_of_memory(cause):
        kind = OutOfMemory
    elif isinstance(cause, FloatingPointError):
        kind = NumericalFailure
    error = kind(request_id, f"{type(cause).__name__}: {cause}")
    error.__cause__ = without_frames(cause)  # frames would keep the request's tensors alive
    # The message may quote the prompt, so the log names only the kind and the places.
    log.warning("request %s failed: %s", request_id, "\n".join([type(cause).__name__, *_notes(cause)]))
    return error


def _notes(error: Exception) -> list[str]:
    return list(getattr(error, "__notes__", ()))
