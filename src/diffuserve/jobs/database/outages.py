"""Outages of the database: which errors are temporary, and for how long work is retried."""

import logging
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from diffuserve.backoff import Backoff, retry
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.telemetry.log_fields import once_a_minute
from diffuserve.telemetry.redaction import summary

log = logging.getLogger(__name__)

T = TypeVar("T")

# SQLSTATEs: connection, resources, shutdown; read-only, idle in a transaction for too long, a lock that was
# not granted in time, and a statement that a timeout or an operator canceled.
_LOCKED = "55P03"
_AWAY = ("08", "53", "57P", "25006", "25P03", _LOCKED, "57014")
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
# A full or broken disk. Failed writes are not retried: every other write would wait for them.
_UNWRITABLE = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
)
_PATIENCE_SECONDS = 10.0
_BACKOFF = Backoff(first_seconds=0.05, longest_seconds=1.0, jitter=0.5)


async def retry_while_unavailable(work: Callable[[bool], Awaitable[T]]) -> T:
    """Await `work(is_retry)` again while the database is unavailable, as it is during a restart.

    Raise `ServerUnavailable` when that takes longer than ten seconds, and at once if the disk is full.
    """
    try:
        return await retry(lambda attempt: work(attempt > 1), _pause, _BACKOFF, _PATIENCE_SECONDS)
    except Exception as error:
        if not is_unavailable(error):
            raise
        _log(error)
        raise _unavailable(error) from error


def is_unavailable(error: BaseException) -> bool:
    """Return whether the database is unreachable, busy or full, so that the same work may succeed later."""
    if isinstance(error, OSError | PoolTimeout):  # `TimeoutError` is an `OSError`
        return True
    if not isinstance(error, DBAPIError):
        return False
    return (
        error.connection_invalidated
        or _sqlstate(error).startswith(_AWAY)
        or _sqlite_code(error) in _BUSY | _UNWRITABLE
        or "connection is closed" in str(error.orig)
    )


def is_locked(error: BaseException) -> bool:
    """Return whether another process has held the database's lock for longer than this one waits."""
    return _sqlstate(error) == _LOCKED or _sqlite_code(error) in _BUSY


def _pause(error: Exception) -> float | None:
    if not is_unavailable(error) or _sqlite_code(error) in _UNWRITABLE:
        return None
    log.warning("database unavailable%s (%s); retrying", _why(error), summary(error), extra=once_a_minute())
    return 0.0


def _log(error: Exception) -> None:
    if _sqlite_code(error) in _UNWRITABLE:
        log.error(
            "the database cannot be written (%s); is its disk full?", summary(error), extra=once_a_minute()
        )
    else:
        log.error("database unavailable%s: %s", _why(error), summary(error), extra=once_a_minute())


def _unavailable(error: Exception) -> ServerUnavailable:
    if _sqlite_code(error) in _UNWRITABLE:
        return ServerUnavailable(f"the database cannot be written: {_reason(error)}", retry_after=2)
    return ServerUnavailable(f"the database is unavailable{_why(error)}; try again later", retry_after=2)


def _why(error: Exception) -> str:
    """Return what a code alone would not tell an operator."""
    return ", as another process holds its lock" if is_locked(error) else ""


def _reason(error: Exception) -> str:
    """Return the driver's message, without the statement and its values."""
    lines = str(driver_error(error)).splitlines()
    return lines[0] if lines else type(error).__name__


def _sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE of an error of PostgreSQL."""
    return getattr(driver_error(error), "sqlstate", None) or ""


def _sqlite_code(error: BaseException) -> int | None:
    """Return the primary result code of an error of SQLite."""
    code = getattr(driver_error(error), "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def driver_error(error: BaseException) -> BaseException:
    """Return the driver's error, which SQLAlchemy wraps."""
    return getattr(error, "orig", None) or error
