"""Errors in the log without their messages, which may quote what clients sent: prompts, keys, signed URLs.

What remains is what a developer needs: the class of each error, its place in the code, and the codes of the
operating system and of the database.
"""

import asyncio
import logging
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger(__name__)

_MAX_CAUSES = 8


def summary(error: BaseException) -> str:
    """Return the class of an error, and its code if it has one: `ConnectionRefusedError (111, …)`."""
    source = getattr(error, "orig", None) or error  # SQLAlchemy wraps the error of the driver
    name = type(source).__qualname__
    if state := getattr(source, "sqlstate", None):
        return f"{name} (SQLSTATE {state})"
    if code := getattr(source, "sqlite_errorname", None):
        return f"{name} ({code})"
    if isinstance(source, OSError) and source.errno is not None and source.errno > 0:
        return f"{name} ({source.errno}, {os.strerror(source.errno)})"
    return name


def description(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, the first cause first, without any message."""
    causes = [error]
    while (cause := _cause_of(causes[-1])) is not None and len(causes) < _MAX_CAUSES:
        causes.append(cause)
    parts = ("".join(traceback.format_tb(part.__traceback__)) + summary(part) for part in reversed(causes))
    return "\nwhich led to:\n".join(parts)


@contextmanager
def redacted_logs() -> Iterator[None]:
    """Leave the messages of errors out of every traceback that is logged within the block, by any library."""
    make = logging.getLogRecordFactory()

    def make_redacted(*arguments: Any, **options: Any) -> logging.LogRecord:
        record = make(*arguments, **options)
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text, record.exc_info = description(record.exc_info[1]), None
        return record

    logging.setLogRecordFactory(make_redacted)
    try:
        yield
    finally:
        logging.setLogRecordFactory(make)


def log_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no task has awaited. The loop's own handler would print the task with its error."""
    error = context.get("exception")
    described = "" if error is None else f"\n{description(error)}"
    log.error("%s%s", context.get("message", "an error in the event loop"), described)


def _cause_of(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)
