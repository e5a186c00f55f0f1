"""Ids of jobs, files and more in the paths of requests."""

import re

from diffuserve.domain.errors import InvalidParams

_ID = re.compile(r"[\w.:@-]*\w[\w.:@-]*")


def checked_id(given: str) -> str:
    """Return an id as it is, if it can stand in a path. Raise `InvalidParams`.

    Programs get ids from their own clients: none, such as `../models`, may lead to another resource.
    """
    if not isinstance(given, str):
        raise InvalidParams("id", type(given).__name__, "is no text; give the `id` of it")
    if not _ID.fullmatch(given):
        raise InvalidParams("id", given, "is no id, which has letters, digits and -_.:@ alone")
    return given
