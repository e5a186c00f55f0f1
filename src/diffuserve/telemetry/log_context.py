"""The context of log lines: what is bound to a request, such as its id, stands on each of its lines."""

from typing import Any

from diffuserve.telemetry.lean_structlog import structlog


def bind(**values: Any) -> None:
    """Show these values on the lines of the current task, and of those that it starts, from now on."""
    structlog.contextvars.bind_contextvars(**values)
