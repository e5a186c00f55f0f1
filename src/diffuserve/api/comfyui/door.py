"""The door of programs that were written for ComfyUI, as the application mounts it."""

import re

from fastapi import APIRouter, Response

from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.other_doors import OtherDoor
from diffuserve.api.http.problem import Problem
from diffuserve.api.http.responses import json_response

router = APIRouter(tags=["comfyui"], route_class=JsonRoute)


def error_response(problem: Problem) -> Response:
    """Build an error response in ComfyUI's form."""
    return json_response({"detail": problem.detail}, problem.status, problem.headers)


_PATHS = re.compile(r"/(api/)?(prompt|queue|history|interrupt)(/.*)?")
DOOR = OtherDoor(router=router, paths=_PATHS, respond=error_response)
