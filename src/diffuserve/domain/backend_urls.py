"""URLs of the database and of Valkey, as operators write them."""

import re

from diffuserve.domain.errors import InvalidParams

_DATABASES = {"postgres": "postgresql", "postgresql": "postgresql", "sqlite": "sqlite"}
_BUSES = {"valkey": "redis", "valkeys": "rediss", "redis": "redis", "rediss": "rediss"}
_BUS_URL = re.compile(
    r"(?P<scheme>\w+)://(?P<rest>([^@/]*@)?(\[[0-9a-fA-F:.]+\]|[^@/:?#]+)(:(?P<port>\d+))?(/\d*)?)"
)
LAST_PORT = 65_535


def checked_database_url(url: str) -> str:
    """Return the URL with its scheme as SQLAlchemy spells it. Raise `InvalidParams`."""
    scheme, found, rest = url.partition("://")
    if not found or scheme not in _DATABASES:
        shown = scheme if found else "…"  # the rest may hold a password
        raise InvalidParams("database_url", shown, "must begin with postgresql:// or sqlite:///")
    return f"{_DATABASES[scheme]}://{rest}"


def checked_bus_url(url: str) -> str:
    """Return the URL of Valkey in the form of its client library. Raise `InvalidParams`."""
    match = _BUS_URL.fullmatch(url)
    if match is None or match["scheme"] not in _BUSES or int(match["port"] or 0) > LAST_PORT:
        remedy = "must be valkey://HOST:PORT/NUMBER, or begin with valkeys, redis or rediss"
        raise InvalidParams("valkey_url", "…", remedy)  # it may hold a password
    return f"{_BUSES[match['scheme']]}://{match['rest']}"
