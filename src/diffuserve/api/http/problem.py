"""An error response before it is written, in whichever form."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from diffuserve.api.http.field_errors import FieldError


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Error response before it is written; `retry_after` in seconds."""

    status: int
    code: str
    detail: str
    is_retryable: bool = False
    retry_after: float | None = None
    errors: tuple[FieldError, ...] = ()
    extra: Mapping[str, str | float | None] = field(default_factory=dict)
    allow: str | None = None  # the methods of a path, which 405 names
    size: int | None = None  # bytes of a file, which 416 names

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response; `Retry-After` is rounded up to whole seconds."""
        headers = {}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status == 408:
            headers["connection"] = "close"  # nobody waits for the rest of the body
        if self.allow is not None:
            headers["allow"] = self.allow
        if self.size is not None:
            headers["content-range"] = f"bytes */{self.size}"
        return headers
