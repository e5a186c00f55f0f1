"""Values of a line of the log: `log.info("job finished", extra=fields(job_id=...))`."""

from typing import Any

FIELDS = "fields"
IS_REPEATED = "is_repeated"


def fields(**values: Any) -> dict[str, Any]:
    """Return the `extra` of a line with these values. Those that are `None` are left out."""
    return {FIELDS: {name: value for name, value in values.items() if value is not None}}


def once_a_minute(**values: Any) -> dict[str, Any]:
    """Return the `extra` of a line, with these values, that is logged at most once a minute.

    It is for what every request would repeat. Lines count as the same if their messages are equal before the
    arguments are filled in.
    """
    return {**fields(**values), IS_REPEATED: True}
