"""The door of programs that were written for AUTOMATIC1111, as the application mounts it."""

import re

from fastapi import APIRouter

from diffuserve.api.a1111 import drawing_routes, list_routes
from diffuserve.api.a1111.errors import error_response
from diffuserve.api.http.other_doors import OtherDoor, basic_key

router = APIRouter()
router.include_router(drawing_routes.router)
router.include_router(list_routes.router)  # its last route takes every name


DOOR = OtherDoor(
    router=router,
    paths=re.compile(r"/(sdapi/v1|controlnet)/.*|/internal/ping"),
    respond=error_response,
    secret_of=basic_key,
    uploads=drawing_routes.UPLOADS,
)
