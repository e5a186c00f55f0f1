"""FastAPI dependencies that authenticate the caller of a route."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection

from diffuserve.api.auth.access import METRICS_ROLES, Authenticator, Caller
from diffuserve.api.auth.revocation import RevocationWatch
from diffuserve.api.auth.sessions import Sessions, has_cookie
from diffuserve.api.config import ApiConfig
from diffuserve.api.http.other_doors import door_at
from diffuserve.api.http.parts import Uses, part_of
from diffuserve.api.http.path_params import named_ids
from diffuserve.domain.errors import WorkerNotFound
from diffuserve.domain.tenant import Role, family_of
from diffuserve.domain.workers.worker_ids import is_owned
from diffuserve.telemetry import log_context

_OTHER_SITES = ("cross-site", "same-site")
_ADMITTED = "diffuserve.admitted"
_HTTP_SCHEMES = {"ws": "http", "wss": "https"}  # a URL in a message over a WebSocket is for a browser


@dataclass(frozen=True)
class _Gate:
    """Parts that tell callers apart."""

    authenticator: Authenticator
    sessions: Sessions
    revocations: RevocationWatch


class RequireRole(SecurityBase):
    """Dependency that returns the caller, who must have one of `roles`.

    One dependency does it all, because FastAPI resolves each of them for every request. It does so once for
    each request: `JsonRoute` asks it before it reads a body, and FastAPI afterwards.
    """

    model = HTTPBearer(description="An API key made by `diffuserve keys create`.")
    scheme_name = "key"

    def __init__(self, *roles: Role) -> None:
        self._roles = roles

    async def __call__(self, request: Request) -> Caller:
        admitted: dict[RequireRole, Caller] = request.scope.setdefault(_ADMITTED, {})
        if self not in admitted:
            admitted[self] = await self.caller(request, bearer_of(request))
        return admitted[self]

    async def caller(self, connection: HTTPConnection, secret: str | None) -> Caller:
        """Return the caller with this secret, or with a session. Raise `Unauthorized` or `Forbidden`."""
        gate = part_of(connection, _Gate)
        caller = None if secret else await _session_caller(gate, connection)
        caller = caller or await gate.authenticator.caller(secret)
        caller.require(*self._roles)
        gate.revocations.add(connection, caller)
        log_context.bind(**named_ids(connection.path_params))
        return caller


async def _session_caller(gate: _Gate, connection: HTTPConnection) -> Caller | None:
    """Return whom a session cookie authenticates, if the request relies on one."""
    if not has_cookie(connection) or await gate.authenticator.is_open():
        return None
    return await gate.sessions.caller(connection)


OperatorCaller = Annotated[Caller, Depends(RequireRole(Role.OPERATOR))]
_require_monitor = RequireRole(*METRICS_ROLES)
ScalerCaller = Annotated[Caller, Depends(RequireRole(*METRICS_ROLES))]
WorkerCaller = Annotated[Caller, Depends(RequireRole(Role.WORKER))]
WorkerOrOperatorCaller = Annotated[Caller, Depends(RequireRole(Role.WORKER, Role.OPERATOR))]


async def _check_metrics_reader(request: Request) -> None:
    """Raise `Unauthorized` or `Forbidden` unless the caller may read the metrics."""
    if part_of(request, ApiConfig).public_metrics:
        return
    secret = bearer_of(request)
    if secret is None and has_cookie(request):
        await _require_monitor(request)
    else:
        (await part_of(request, Authenticator).metrics_reader(secret)).require(*METRICS_ROLES)


MetricsReader = Depends(_check_metrics_reader)


def bearer_of(connection: HTTPConnection) -> str | None:
    """Return the token of the `Authorization: Bearer` header, `None` without one.

    At the door of another server's programs the key may be there as they send it, but not from the page of
    another site: a browser adds by itself what someone once typed into an address.
    """
    scheme, _, secret = connection.headers.get("authorization", "").partition(" ")
    scheme, secret = scheme.lower(), secret.strip()
    if scheme and scheme != "bearer" and (door := door_at(connection)):
        is_foreign = connection.headers.get("sec-fetch-site") in _OTHER_SITES
        return None if is_foreign else door.secret_of(scheme, secret)
    return (secret or None) if scheme == "bearer" else None


Config = Annotated[ApiConfig, Depends(Uses(ApiConfig))]


def base_url_of(connection: HTTPConnection) -> str:
    """Return the base of the absolute URLs in a response, without a final slash."""
    if public_url := part_of(connection, ApiConfig).public_api_url:
        return public_url.rstrip("/")
    base = connection.base_url
    scheme = _HTTP_SCHEMES.get(base.scheme, base.scheme)
    return str(base.replace(scheme=scheme)).rstrip("/")


async def _base_url(request: Request) -> str:
    return base_url_of(request)


BaseUrl = Annotated[str, Depends(_base_url)]


def key_of(caller: Caller) -> str:
    """Return what the ids of the caller's key and its successors share.

    It is `""` for the server's own worker, and for anybody on an open server.
    """
    return family_of(caller.key_id or "")


def checked_owner(worker_id: str, caller: Caller) -> str:
    """Return the id of a worker. Raise `WorkerNotFound` if it registered with another key."""
    if not is_owned(worker_id, key_of(caller)):
        raise WorkerNotFound(f"no worker {worker_id} registered with this key; register again")
    return worker_id


def checked_owner_or_operator(worker_id: str, caller: Caller) -> str:
    """Return the id of a worker. Raise `WorkerNotFound` as `checked_owner` does, but not to operators."""
    return worker_id if Role.OPERATOR in caller.roles else checked_owner(worker_id, caller)
