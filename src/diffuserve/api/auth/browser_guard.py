"""Refusal of what web pages of other sites send to a server that requires no API key.

A browser lets every page send requests to this machine, and a page whose name was made to point here (DNS
rebinding) may read the responses as well. Such a request has a `Host` or an `Origin` that gives it away.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from diffuserve.api.auth.access import Authenticator
from diffuserve.api.http.problems import problem_of, problem_response
from diffuserve.domain.addresses import is_loopback
from diffuserve.domain.errors import Forbidden

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d*)?", re.ASCII)
_TELLING = frozenset({b"host", b"origin", b"sec-fetch-site"})
_OWN_SITES = frozenset({"same-origin", "none"})  # `none` is a request that no page has made
_REMEDY = "create an API key with `diffuserve keys create`"


class BrowserGuard:
    """Responds with 403 to what other sites' pages send, while the server is open; it asks for keys then."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator, own: "OwnAddresses") -> None:
        self._app = app
        self._authenticator = authenticator
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        objection = None if scope["type"] == "lifespan" else self._own.objection(scope)
        # A key cannot be sent without being known: with keys, the sender's site is of no consequence.
        if objection is None or not await self._authenticator.is_open():
            await self._app(scope, receive, send)
            return
        response = problem_response(problem_of(Forbidden(objection)), HTTPConnection(scope))
        await response(scope, receive, send)


@dataclass(frozen=True)
class OwnAddresses:
    """Names and addresses of this server beside those of loopback.

    `hosts` are names and addresses without a port, `origins` are those of pages as `host:port`. `allowed`
    are whole origins of other sites whose pages may do what the server's own may. `is_https` tells that
    clients reach the server by https, whatever a proxy uses behind it.
    """

    hosts: frozenset[str]
    origins: frozenset[str]
    allowed: frozenset[bytes] = frozenset()
    is_https: bool = False

    @classmethod
    def of(cls, hosts: Iterable[str], public_url: str | None, allowed: Iterable[str] = ()) -> "OwnAddresses":
        """Return what is configured: `hosts`, the URL by which clients reach the server, and other sites."""
        public = urlsplit(public_url or "")
        names = {*map(str.lower, hosts), public.hostname or ""} - {""}
        origins = frozenset({public.netloc.lower()} - {""})
        return cls(frozenset(names), origins, frozenset(map(str.encode, allowed)), public.scheme == "https")

    def objection(self, scope: Scope) -> str | None:
        """Return why the page of another site may have sent this request, `None` if none can have."""
        sent = [header for header in scope["headers"] if header[0] in _TELLING]
        host = ", ".join(value.decode("latin-1") for name, value in sent if name == b"host")
        if not self._is_own(host, scope):
            return (
                f"host {host!r} is not known to be this server's, which is open to everyone; {_REMEDY}, "
                "or name the host in DIFFUSERVE_ALLOWED_HOSTS"
            )
        is_change = scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS
        if is_change and len(sent) > 1 and (sender := self._other_site(sent, host)):
            return (
                f"{sender} is another site, and this server is open to everyone; {_REMEDY}, "
                "or name the site in DIFFUSERVE_ALLOWED_ORIGINS"
            )
        return None

    def is_own_page(self, connection: HTTPConnection) -> bool | None:
        """Return whether a page of this server sent a request; `None` if that cannot be told.

        Browsers set `Sec-Fetch-Site` for secure addresses, and no page can change it. It is `none` for what
        a person asked for. Pages of allowed sites are not the server's own.
        """
        if site := connection.headers.get("sec-fetch-site"):
            return None if site == "none" else site == "same-origin"
        if (origin := connection.headers.get("origin")) is None:
            return None
        return _origin_host(origin) in {connection.headers.get("host", "").lower(), *self.origins} - {""}

    def _is_own(self, host: str, scope: Scope) -> bool:
        """Return whether `host` is loopback, configured, or the address at which the request has arrived."""
        name, is_local = _named(host)
        server = scope.get("server") or ("", None)
        return is_local or name in self.hosts or (name != "" and name == server[0])

    def _other_site(self, sent: Sequence[tuple[bytes, bytes]], host: str) -> str | None:
        """Return the header that names the other site which sent the request, if one did that may not."""
        if any(name == b"origin" and value in self.allowed for name, value in sent):
            return None
        for name, value in sent:
            text = value.decode("latin-1")
            if name == b"origin" and _origin_host(text) not in {host.lower(), *self.origins}:
                return f"origin {text!r}"
            if name == b"sec-fetch-site" and text not in _OWN_SITES:
                return f"sec-fetch-site {text!r}"
        return None


@lru_cache(maxsize=1_024)
def _named(host: str) -> tuple[str, bool]:
    """Return the name or address in a `Host` header, and whether it is loopback; `""` if it is malformed."""
    match = _HOST.fullmatch(host)
    name = "" if match is None else match["name"].strip("[]").lower()
    return name, is_loopback(name)


def _origin_host(origin: str) -> str:
    """Return `host:port` of an origin; empty for `null`, which sandboxed pages send."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
