"""The door of programs that were written for AUTOMATIC1111, as the application mounts it."""

import binascii
import re
from base64 import b64decode

from fastapi import APIRouter

from diffuserve.api.a1111 import drawing_routes, list_routes
from diffuserve.api.a1111.errors import error_response
from diffuserve.api.http.other_doors import OtherDoor

router = APIRouter()
router.include_router(drawing_routes.router)
router.include_router(list_routes.router)  # its last route takes every name


def basic_key(scheme: str, value: str) -> str | None:
    """Return the key in basic authentication: the password, or the user's name where there is none."""
    if scheme != "basic":
        return None
    try:
        user, _, password = b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return password or user or None


DOOR = OtherDoor(
    router=router,
    paths=re.compile(r"/(sdapi/v1|controlnet)/.*|/internal/ping"),
    respond=error_response,
    secret_of=basic_key,
    uploads=drawing_routes.UPLOADS,
)
