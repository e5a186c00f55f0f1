"""The door of programs that were written for fal, as the application mounts it."""

import re

from diffuserve.api.fal.errors import error_response
from diffuserve.api.fal.routes import router
from diffuserve.api.http.other_doors import OtherDoor


def secret_of(scheme: str, value: str) -> str | None:
    """Return the key of `Authorization: Key KEY`, or of `Key ID:KEY`, as its clients send two parts."""
    return value.rpartition(":")[2] or None if scheme == "key" else None


DOOR = OtherDoor(router=router, paths=re.compile(r"/fal/.*"), respond=error_response, secret_of=secret_of)
