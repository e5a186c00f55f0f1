"""The session of a person's browser, as the API writes it."""

from dataclasses import dataclass, field
from typing import Literal

from diffuserve.domain.resource_base import Resource


@dataclass(frozen=True, kw_only=True)
class SessionResource(Resource):
    """Person who uses the web page, by the cookie that the browser sent."""

    is_open: bool = field(metadata={"description": "The server asks nobody for a key."})
    role: Literal["tenant", "operator"] | None = field(
        metadata={"description": "Null when nobody is signed in."}
    )
    tenant_id: str | None
    csrf_token: str | None = field(
        metadata={"description": "`X-CSRF-Token` of requests that change something by the cookie."}
    )
