"""Sessions of browsers: a signed cookie that stands for an API key, without containing it.

The cookie names the key's id, its own expiry and the mark of the key's sessions. No session is stored: every
request asks whether the key is still valid and its mark the same, so a revocation or a new mark ends them. A
browser sends cookies by itself, for whichever page asks, so a page of this server must have sent the request,
and a change must carry the session's CSRF token.
"""

import hmac
import secrets
import time
from dataclasses import dataclass

from cachetools import TTLCache
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Scope

from diffuserve.api.auth.access import Authenticator, Caller
from diffuserve.api.auth.browser_guard import SAFE_METHODS, OwnAddresses
from diffuserve.api.auth.signatures import Signatures
from diffuserve.domain.errors import Forbidden, RateLimited, Unauthorized
from diffuserve.domain.tenant import Role
from diffuserve.jobs.security.signing_secrets import SessionMarks
from diffuserve.quotas.base import Quotas, Rate

COOKIE = "diffuserve_session"
_HOST_ALONE, _TLS_ALONE = f"__Host-{COOKIE}", f"__Secure-{COOKIE}"
_NAMES = frozenset(name.encode() for name in (COOKIE, _HOST_ALONE, _TLS_ALONE))
CSRF_HEADER = "x-csrf-token"
_FAILURES = Rate(1.0)  # per address; a key has 256 random bits, so this limits load, not guessing
_NUM_PARTS = 4  # of a cookie: the key's id, the expiry, a nonce, the mark
_MARK_SECONDS = 5.0
_MAX_MARKS = 10_000
_ROLES = (Role.TENANT, Role.OPERATOR)


@dataclass(frozen=True)
class Session:
    """A valid session: its caller, what its cookie says, and the token that its changes must carry."""

    caller: Caller
    body: str
    signature: str
    csrf_token: str


class Sessions:
    """Opens sessions for API keys of people, and finds the session of a request."""

    def __init__(
        self,
        authenticator: Authenticator,
        signatures: Signatures,
        marks: SessionMarks,
        quotas: Quotas,
        own: OwnAddresses,
        valid_seconds: float,
    ) -> None:
        self._authenticator = authenticator
        self._signatures = signatures
        self._marks = marks
        self._known_marks: TTLCache[str, str] = TTLCache(_MAX_MARKS, _MARK_SECONDS)
        self._quotas = quotas
        self._own = own
        self._valid_seconds = valid_seconds

    async def open(self, connection: HTTPConnection, secret: str) -> Session:
        """Open a session for the key with this secret.

        Raise `Unauthorized` for an unknown key, `Forbidden` for one of a worker or a monitor and for the
        page of another site, and `RateLimited` for an unknown key after others from the same address: who
        has a key must not wait for a stranger behind the same proxy.
        """
        self._refuse_other_sites(connection)
        address = connection.client.host if connection.client else ""
        try:
            caller = await self._authenticator.caller(secret)
        except Unauthorized:
            await self._count_failure(address)
            raise
        caller.require(*_ROLES)
        expires = int(time.time() + self._valid_seconds)
        mark = await self._marks.current(caller.key_id or "")
        return await self._signed(caller, f"{caller.key_id}.{expires}.{secrets.token_urlsafe(12)}.{mark}")

    async def find(self, connection: HTTPConnection) -> Session | None:
        """Return the session whose cookie this request has; `None` without one that is valid."""
        body, _, signature = connection.cookies.get(self._cookie_of(connection).name, "").rpartition(".")
        parts = body.split(".")
        if len(parts) != _NUM_PARTS or not await self._signatures.is_valid(_cookie_message(body), signature):
            return None
        if int(parts[1]) <= time.time() or parts[3] != await self._mark_of(parts[0]):
            return None
        try:
            caller = await self._authenticator.caller_of(parts[0])
        except Unauthorized:
            return None
        return await self._signed(caller, body)

    async def caller(self, connection: HTTPConnection) -> Caller | None:
        """Return whom the cookie authenticates; `None` without a valid one.

        Raise `Forbidden` unless a page of this server sent the request, with the token if it changes.
        """
        session = await self.find(connection)
        if session is None:
            return None
        self._refuse_other_sites(connection)
        if connection.scope["type"] == "websocket":
            self._require_own_page(connection)
        elif connection.scope["method"] not in SAFE_METHODS:
            self._require_own_page(connection)
            await self._require_token(connection, session)
        return session.caller

    async def end_all(self, caller: Caller) -> None:
        """End all sessions of the caller's key, at other control planes within seconds."""
        if caller.key_id:
            await self._marks.end_sessions(caller.key_id)
            self._known_marks.pop(caller.key_id, None)

    async def _mark_of(self, key_id: str) -> str:
        """Return the mark of a key that a valid signature names, as it was some seconds ago."""
        mark = self._known_marks.get(key_id)
        if mark is None:
            mark = self._known_marks[key_id] = await self._marks.current(key_id)
        return mark

    def _refuse_other_sites(self, connection: HTTPConnection) -> None:
        if self._own.is_own_page(connection) is False:
            raise Forbidden("a page of another site cannot use the session cookie; send an API key instead")

    def _require_own_page(self, connection: HTTPConnection) -> None:
        if not self._own.is_own_page(connection):
            raise Forbidden(
                "this request with a session cookie has neither the Origin nor the Sec-Fetch-Site of this "
                "server's page; behind a proxy set DIFFUSERVE_PUBLIC_API_URL, from a program send an API key"
            )

    async def _require_token(self, connection: HTTPConnection, session: Session) -> None:
        token = connection.headers.get(CSRF_HEADER, "")
        if hmac.compare_digest(token.encode(), session.csrf_token.encode()):
            return
        if not await self._signatures.is_valid(_csrf_message(session.body), token):  # or with an older secret
            raise Forbidden(
                "a change with a session cookie needs the csrf_token of GET /v1/session as X-CSRF-Token; "
                "load the page again"
            )

    async def _signed(self, caller: Caller, body: str) -> Session:
        signature = await self._signatures.sign(_cookie_message(body))
        return Session(caller, body, signature, await self._signatures.sign(_csrf_message(body)))

    async def _count_failure(self, address: str) -> None:
        """Count a failure of an address. Raise `RateLimited` while those before are not paid."""
        allowance = await self._quotas.take(f"sign-in/{address}", _FAILURES, 1)
        if not allowance.is_granted:
            raise RateLimited(
                f"too many failed attempts to sign in from {address}; "
                f"retry after {allowance.retry_after:.3g} s",
                retry_after=allowance.retry_after,
            )

    def set_cookie(self, response: Response, connection: HTTPConnection, session: Session) -> None:
        """Have the browser keep a session's cookie, out of reach of scripts and of other sites."""
        self._set(response, connection, f"{session.body}.{session.signature}", int(self._valid_seconds))

    def delete_cookie(self, response: Response, connection: HTTPConnection) -> None:
        """Have the browser forget the session."""
        self._set(response, connection, "", 0)

    def _set(self, response: Response, connection: HTTPConnection, value: str, max_age: int) -> None:
        cookie = self._cookie_of(connection)
        response.set_cookie(
            cookie.name,
            value,
            max_age=max_age,
            path=cookie.path,
            secure=cookie.is_secure,
            httponly=True,
            samesite="strict",
        )

    def _cookie_of(self, connection: HTTPConnection) -> "_Cookie":
        """Return what the cookie is called and where it goes, by how browsers reach this server."""
        path = connection.scope.get("root_path", "").rstrip("/") or "/"
        if not (self._own.is_https or connection.url.scheme in {"https", "wss"}):
            return _Cookie(COOKIE, path, is_secure=False)
        return _Cookie(_HOST_ALONE if path == "/" else _TLS_ALONE, path, is_secure=True)


@dataclass(frozen=True)
class _Cookie:
    """A cookie's name and path. By its prefix browsers take it from this host and by https alone."""

    name: str
    path: str
    is_secure: bool


def has_cookie(connection: HTTPConnection) -> bool:
    """Return whether a request relies on a session cookie: a header that names a key goes before it."""
    return "authorization" not in connection.headers and COOKIE in connection.headers.get("cookie", "")


def drop_other_cookies(scope: Scope) -> None:
    """Remove cookies that are no session from a request.

    FastAPI reads the cookies of every request, and Python takes quadratic time for what is escaped in quotes,
    which a session's value has not.
    """
    headers = scope["headers"]
    if any(name == b"cookie" for name, _ in headers):
        scope["headers"] = [
            (name, _own_cookies(value) if name == b"cookie" else value) for name, value in headers
        ]


def _own_cookies(header: bytes) -> bytes:
    pairs = (part.strip().partition(b"=") for part in header.split(b";") if b'"' not in part)
    return b"; ".join(b"".join(pair) for pair in pairs if pair[0] in _NAMES)


# Signatures of URLs begin with the id of a job, which has no slash.
def _cookie_message(body: str) -> str:
    return f"session/{body}"


def _csrf_message(body: str) -> str:
    return f"csrf/{body}"
