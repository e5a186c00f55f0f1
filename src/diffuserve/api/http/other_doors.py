"""Doors for programs that were written for another server: their routes, their errors and their keys."""

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Response
from starlette.requests import HTTPConnection

from diffuserve.api.http.problem import Problem


@dataclass(frozen=True, kw_only=True)
class OtherDoor:
    """Door that operators open by name.

    Errors at its `paths` have that server's form, which `respond` gives them. `secret_of` returns the key of
    an `Authorization` header, given its scheme in lower case and its value, where that server's clients send
    it in another way than as a bearer token. Bodies of `uploads`, paths too, are limited by their routes.
    """

    router: APIRouter
    paths: re.Pattern[str]
    respond: Callable[[Problem], Response]
    secret_of: Callable[[str, str], str | None] = lambda _scheme, _value: None
    uploads: frozenset[str] = frozenset()


def door_at(connection: HTTPConnection) -> OtherDoor | None:
    """Return the open door that a request has come to, `None` for this server's own."""
    doors: Sequence[OtherDoor] = getattr(connection.app.state, "doors", ())
    return next((door for door in doors if door.paths.fullmatch(connection.url.path)), None)


def basic_key(scheme: str, value: str) -> str | None:
    """Return the key in basic authentication: the password, or the user's name where there is none."""
    if scheme != "basic":
        return None
    try:
        user, _, password = b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return password or user or None
