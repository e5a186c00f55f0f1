"""Errors as OpenAI's API tells them, on its paths."""

from dataclasses import dataclass
from typing import Any

from diffuserve.domain.resource_base import Resource


@dataclass(frozen=True, kw_only=True)
class OpenAIError(Resource):
    """Error in OpenAI's terms; `param` names the field at fault."""

    message: str
    type: str
    param: str | None
    code: str


@dataclass(frozen=True, kw_only=True)
class OpenAIErrorEnvelope(Resource):
    """Body of every error response."""

    error: OpenAIError


OPENAI_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": "OpenAI's error envelope.", "model": OpenAIErrorEnvelope}
    for status in ("4XX", "5XX")
}
