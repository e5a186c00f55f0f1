"""Origins of web pages of other sites that may use the API from a browser: none by default."""

import re

EVERY_ORIGIN = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@A-Z]+")


def check_origin(origin: str) -> None:
    """Raise `ValueError` unless this is an origin as browsers send it, or `*` for every one."""
    if origin != EVERY_ORIGIN and not _ORIGIN.fullmatch(origin):
        raise ValueError(
            f"{origin!r} is not an origin such as https://app.example.com: in lower case, without a path"
        )
