"""Rules for the heads of requests, beyond those of the parser."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MAX_HEADERS = 128
"""Headers of a request; more are refused, as they are in handshakes of WebSockets."""


@dataclass(frozen=True)
class RequestHead:
    """Head of a request as it was parsed; `is_upgrade` if it asks for another protocol, such as WebSocket."""

    method: str
    version: str
    headers: Sequence[tuple[bytes, bytes]]
    is_upgrade: bool
    is_websocket: bool

    @property
    def fault(self) -> str | None:
        """Reason for which this request is ambiguous, or none that is served here; `None` for a good one."""
        num = Counter(name for name, _ in self.headers)
        if self.version not in ("1.0", "1.1"):
            return f"HTTP/{self.version} is not spoken here; send HTTP/1.1"
        if num[b"host"] > 1 or (num[b"host"] == 0 and self.version != "1.0"):
            return f"the request has {num[b'host']} Host headers; send one"
        if self.is_upgrade and self._has_body(num):
            return "a request for an upgrade has no body; send it without Upgrade, or without a body"
        if self.is_websocket and (self.method, self.version) != ("GET", "1.1"):
            return f"a WebSocket is opened by GET and HTTP/1.1, not by {self.method} and HTTP/{self.version}"
        return None

    def _has_body(self, num: Counter[bytes]) -> bool:
        # The parser reads none after such a head, and would take it for the next request.
        lengths = [value for name, value in self.headers if name == b"content-length"]
        return num[b"transfer-encoding"] > 0 or any(length.strip() != b"0" for length in lengths)
