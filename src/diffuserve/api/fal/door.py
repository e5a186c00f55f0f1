"""The door of programs that were written for fal, as the application mounts it."""

import re

from fastapi import APIRouter, Response

from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.other_doors import OtherDoor
from diffuserve.api.http.problem import Problem
from diffuserve.api.http.responses import json_response

router = APIRouter(tags=["fal"], route_class=JsonRoute)


def error_response(problem: Problem) -> Response:
    """Build an error response in fal's form."""
    return json_response({"detail": problem.detail}, problem.status, problem.headers)


DOOR = OtherDoor(router=router, paths=re.compile(r"/fal/.*"), respond=error_response)
