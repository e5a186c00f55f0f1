"""A word to the operator about a proxy that is not among the trusted ones."""

import logging

from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)

_FORWARDED = b"x-forwarded-for"


class UnknownProxies:
    """Logs the first request that was forwarded by a proxy which is not believed.

    All clients of such a proxy are one to the server: they share the limits of an address.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._has_told = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._has_told and scope["type"] != "lifespan" and (peer := _unknown_proxy(scope)):
            self._has_told = True
            log.warning(
                "%s names its client in X-Forwarded-For and is not believed: if it is your proxy, all its "
                "clients share the limits of one; add it to DIFFUSERVE_TRUSTED_PROXIES",
                peer,
            )
        await self._app(scope, receive, send)


def _unknown_proxy(scope: Scope) -> str | None:
    """Return who sent a forwarded request, unless one of the named clients took its place before."""
    named = b",".join(value for name, value in scope["headers"] if name == _FORWARDED).decode("latin-1")
    peer = scope["client"][0] if scope.get("client") else ""
    return peer if peer and named and peer not in map(str.strip, named.split(",")) else None
