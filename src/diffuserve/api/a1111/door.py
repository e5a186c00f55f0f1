"""The door of programs that were written for AUTOMATIC1111, as the application mounts it."""

import re

from fastapi import APIRouter, Response

from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.other_doors import OtherDoor
from diffuserve.api.http.problem import Problem
from diffuserve.api.http.responses import json_response

router = APIRouter(tags=["a1111"], route_class=JsonRoute)


def error_response(problem: Problem) -> Response:
    """Build an error response in AUTOMATIC1111's form."""
    return json_response({"detail": problem.detail}, problem.status, problem.headers)


DOOR = OtherDoor(router=router, paths=re.compile(r"/sdapi/v1/.*|/internal/ping"), respond=error_response)
