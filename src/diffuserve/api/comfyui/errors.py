"""Errors in ComfyUI's form, in which faults stand beside the nodes that have them."""

from typing import Any

from fastapi import Response

from diffuserve.api.comfyui.graphs import NodeFault
from diffuserve.api.http.problem import Problem
from diffuserve.api.http.responses import json_response

_INVALID = ("prompt_outputs_failed_validation", "Prompt outputs failed validation")


def error_response(problem: Problem) -> Response:
    """Build an error response without a node."""
    content = {"error": _error(problem.code, problem.detail, ""), "node_errors": {}}
    return json_response(content, problem.status, problem.headers)


def refusal(fault: NodeFault) -> Response:
    """Build the response that refuses a prompt."""
    if not fault.node_id:
        return json_response({"error": _error(fault.kind, fault.details, ""), "node_errors": {}}, 400)
    told = f"* {fault.class_type} {fault.node_id}: {fault.details}"
    error = _error(fault.kind, fault.details, fault.details)
    if fault.input_name is not None:
        error["extra_info"] = {"input_name": fault.input_name}
    node = {"errors": [error], "dependent_outputs": [], "class_type": fault.class_type}
    return json_response({"error": _error(*_INVALID, told), "node_errors": {fault.node_id: node}}, 400)


def _error(kind: str, message: str, details: str) -> dict[str, Any]:
    return {"type": kind, "message": message, "details": details, "extra_info": {}}
