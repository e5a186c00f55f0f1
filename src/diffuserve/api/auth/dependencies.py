"""The keys that requests carry, as dependencies of routes."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection

from diffuserve.api.auth.access import Caller
from diffuserve.api.services import Services, services_of
from diffuserve.domain.tenant import Role


class KeyOf(SecurityBase):
    """Gives the caller, who must have one of `roles`. One dependency, since every request pays for each."""

    model = HTTPBearer(description="A key made by `diffuserve keys create`.")
    scheme_name = "key"

    def __init__(self, *roles: Role) -> None:
        self._roles = roles

    async def __call__(self, request: Request) -> Caller:
        return await self.caller(request, bearer_of(request))

    async def caller(self, connection: HTTPConnection, secret: str | None) -> Caller:
        """Raises `Unauthorized` or `Forbidden`."""
        caller = await services_of(connection).gate.caller(secret)
        caller.require(*self._roles)
        return caller


_client = KeyOf(Role.TENANT, Role.OPERATOR)
Client = Annotated[Caller, Depends(_client)]
Operator = Annotated[Caller, Depends(KeyOf(Role.OPERATOR))]
WorkerOnly = Annotated[Caller, Depends(KeyOf(Role.WORKER))]


async def socket_client(connection: HTTPConnection) -> Caller:
    """Who opens a WebSocket: browsers cannot set its headers, so the key may stand in the query."""
    secret = bearer_of(connection) or connection.query_params.get("access_token")
    return await _client.caller(connection, secret)


def bearer_of(connection: HTTPConnection) -> str | None:
    scheme, _, secret = connection.headers.get("authorization", "").partition(" ")
    return (secret.strip() or None) if scheme.lower() == "bearer" else None


def base_url_of(services: Services, connection: HTTPConnection) -> str:
    """What the absolute URLs in an answer begin with."""
    if services.config.public_api_url:
        return services.config.public_api_url.rstrip("/")
    return str(connection.base_url).rstrip("/")


async def _base_url(request: Request) -> str:
    return base_url_of(services_of(request), request)


BaseUrl = Annotated[str, Depends(_base_url)]
