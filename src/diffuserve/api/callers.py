"""The keys that requests carry, as dependencies of routes."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from diffuserve.api.access import Caller
from diffuserve.api.services import Services, ServicesOf
from diffuserve.domain.tenant import Role

_bearer = HTTPBearer(auto_error=False, description="A key made by `diffuserve keys create`.")


async def _caller(
    services: ServicesOf,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Caller:
    return await services.gate.caller(credentials.credentials if credentials else None)


async def _client(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require(Role.TENANT, Role.OPERATOR)
    return caller


async def _operator(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require(Role.OPERATOR)
    return caller


async def _worker(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require(Role.WORKER)
    return caller


Client = Annotated[Caller, Depends(_client)]
Operator = Annotated[Caller, Depends(_operator)]
WorkerOnly = Annotated[Caller, Depends(_worker)]


async def socket_client(services: Services, connection: HTTPConnection) -> Caller:
    """Who opens a WebSocket: browsers cannot set its headers, so the key may stand in the query."""
    scheme, _, secret = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        secret = connection.query_params.get("access_token", "")
    caller = await services.gate.caller(secret.strip() or None)
    caller.require(Role.TENANT, Role.OPERATOR)
    return caller


def base_url_of(services: Services, connection: HTTPConnection) -> str:
    """What the absolute URLs in an answer begin with."""
    if services.config.public_base_url:
        return services.config.public_base_url.rstrip("/")
    return str(connection.base_url).rstrip("/")


async def _base_url(services: ServicesOf, request: Request) -> str:
    return base_url_of(services, request)


BaseUrl = Annotated[str, Depends(_base_url)]
