"""RFC 3339 timestamps, the form of every time in the API's JSON."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import overload


@overload
def to_rfc3339(seconds: float) -> str: ...
@overload
def to_rfc3339(seconds: None) -> None: ...
@overload
def to_rfc3339(seconds: float | None) -> str | None: ...
def to_rfc3339(seconds: float | None) -> str | None:
    """Format seconds since the epoch as a UTC time with milliseconds; `None` stays `None`."""
    return None if seconds is None else _formatted(seconds)


@lru_cache(4_096)  # the same times are written again and again: when a worker registered, a job was submitted
def _formatted(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@overload
def from_rfc3339(text: str) -> datetime: ...
@overload
def from_rfc3339(text: None) -> None: ...
@overload
def from_rfc3339(text: str | None) -> datetime | None: ...
def from_rfc3339(text: str | None) -> datetime | None:
    """Parse a time of the API as an aware datetime; `None` stays `None`. Raise `ValueError` if malformed."""
    return None if text is None else datetime.fromisoformat(text)
