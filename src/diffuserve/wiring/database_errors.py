"""Databases that cannot be opened: where they are, why, and what to do, in one line."""

import sqlalchemy as sa

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.jobs.database.outages import driver_error, is_locked

_PORT = 5432
_NO_DATABASE = "3D000"
_REFUSED = ("28", "42501")  # a wrong user or password; too few rights
_SETTING = "--database-url or DIFFUSERVE_DATABASE_URL"
_ITS_HOLDER = "wait for the process that holds its lock, or end it"


def cannot_open(store_url: str, error: Exception) -> ServerUnavailable:
    """Return the error that names the database's place once, the cause, and a remedy."""
    url, reason = sa.make_url(store_url), _reason(error)
    if url.get_backend_name() == "sqlite":
        remedy = _ITS_HOLDER if is_locked(_source(error)) else "check its folder, and the disk's free space"
        return ServerUnavailable(f"cannot open the database {url.database}: {reason}; {remedy}")
    place = f"{_host_of(url)}:{url.port or _PORT}"
    return ServerUnavailable(f"cannot open the database at {place}: {reason}; {_remedy(url, error)}")


def _host_of(url: sa.URL) -> str:
    """Return the host, or the folder of the server's socket."""
    named = url.host or url.query.get("host") or "localhost"
    return named if isinstance(named, str) else ",".join(named)


def _remedy(url: sa.URL, error: Exception) -> str:
    if is_locked(_source(error)):
        return f"{_ITS_HOLDER}: pg_stat_activity names it"
    state = str(getattr(_source(error), "sqlstate", None) or "")
    if state == _NO_DATABASE:
        where = f"-h {_host_of(url)} -p {url.port or _PORT}"
        return f"create it with `createdb {where} {url.database}`, or correct {_SETTING}"
    if state.startswith(_REFUSED):
        return f"correct the user or the password in {_SETTING}, or the server's rights"
    return f"start it, or correct {_SETTING}"


def _reason(error: Exception) -> str:
    """Return the driver's message in one line, without the statement and the advice of SQLAlchemy."""
    source = _source(error)
    if "Connect call failed" in str(source):  # one for each address that the host's name has
        return "connection refused"
    if isinstance(source, TimeoutError):
        return "no response"
    text = str(getattr(source, "strerror", None) or source) or type(source).__name__
    return text.splitlines()[0].rstrip(".")


def _source(error: BaseException) -> BaseException:
    """Return the driver's error, which others wrap."""
    if isinstance(error, ServerUnavailable) and error.__cause__ is not None:
        return _source(error.__cause__)
    return driver_error(error)
