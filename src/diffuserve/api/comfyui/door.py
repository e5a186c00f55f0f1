"""The door of programs that were written for ComfyUI, as the application mounts it."""

import re

from fastapi import APIRouter

from diffuserve.api.comfyui import list_routes, prompt_routes, socket
from diffuserve.api.comfyui.errors import error_response
from diffuserve.api.http.other_doors import OtherDoor, basic_key

_PREFIX = "/api"  # every path of ComfyUI is there too
_NAMES = (
    *("prompt", "queue", "history", "interrupt", "view", "ws", "upload", "object_info", "models"),
    *("embeddings", "extensions", "features", "system_stats", "free"),
)

router = APIRouter()
for prefix in ("", _PREFIX):
    for routes in (prompt_routes, list_routes, socket):
        router.include_router(routes.router, prefix=prefix, include_in_schema=not prefix)

DOOR = OtherDoor(
    router=router,
    paths=re.compile(rf"({_PREFIX})?/({'|'.join(_NAMES)})(/.*)?"),
    respond=error_response,
    secret_of=basic_key,
    uploads=frozenset({list_routes.UPLOAD, _PREFIX + list_routes.UPLOAD}),
)
