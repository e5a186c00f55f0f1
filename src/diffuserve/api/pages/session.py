"""The session of the web page: sign in with an API key, see who is signed in, sign out."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from diffuserve.api.auth.access import ANONYMOUS, Authenticator
from diffuserve.api.auth.sessions import Session, Sessions
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.submit.request_bodies import RequestBody
from diffuserve.domain.resources.session import SessionResource
from diffuserve.domain.tenant import Role

router = APIRouter(prefix="/v1/session", tags=["session"], route_class=JsonRoute)


@dataclass(frozen=True)
class SessionParts:
    """Parts that these routes use."""

    authenticator: Authenticator
    sessions: Sessions


Used = Annotated[SessionParts, Depends(Uses(SessionParts))]


Everywhere = Annotated[
    bool, Query(description="End all sessions of the key, in other browsers and of copied cookies too.")
]

_HEADERS = {"cache-control": "no-store"}
_NOBODY = SessionResource(is_open=False, role=None, tenant_id=None, csrf_token=None)
_OPEN = SessionResource(is_open=True, role="operator", tenant_id=ANONYMOUS.tenant_id, csrf_token=None)


class SignIn(RequestBody):
    """An API key with the role tenant or operator."""

    key: str = Field(max_length=200, description="The key as `diffuserve keys create` shows it.", repr=False)


@router.get("", summary="See who is signed in", response_model=SessionResource)
async def get_session(request: Request, parts: Used) -> Response:
    """See whose session the browser's cookie is, and get the token that its changes need. Needs no key."""
    return json_response(await _current(request, parts), headers=_HEADERS)


@router.post("", summary="Sign in", response_model=SessionResource)
async def open_session(body: SignIn, request: Request, parts: Used) -> Response:
    """Open a session for an API key: a cookie that no script can read takes the key's place."""
    if await parts.authenticator.is_open():
        return json_response(_OPEN, headers=_HEADERS)
    session = await parts.sessions.open(request, body.key.strip())
    response = json_response(_resource(session), headers=_HEADERS)
    parts.sessions.set_cookie(response, request, session)
    return response


@router.delete("", summary="Sign out", status_code=204)
async def close_session(request: Request, parts: Used, everywhere: Everywhere = False) -> Response:
    """Have the browser forget its session. Needs the session's `X-CSRF-Token`, if it has a valid one."""
    if not await parts.authenticator.is_open():
        caller = await parts.sessions.caller(request)
        if everywhere and caller is not None:
            await parts.sessions.end_all(caller)
    response = Response(status_code=204, headers=_HEADERS)
    parts.sessions.delete_cookie(response, request)
    return response


async def _current(request: Request, parts: SessionParts) -> SessionResource:
    if await parts.authenticator.is_open():
        return _OPEN
    session = await parts.sessions.find(request)
    return _NOBODY if session is None else _resource(session)


def _resource(session: Session) -> SessionResource:
    caller = session.caller
    return SessionResource(
        is_open=False,
        role="operator" if Role.OPERATOR in caller.roles else "tenant",
        tenant_id=caller.tenant_id,
        csrf_token=session.csrf_token,
    )
