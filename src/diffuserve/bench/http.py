"""One exchange over HTTP, whose failures are told by kind and never retried."""

from collections.abc import Mapping
from typing import Any

import httpx

from diffuserve.bench.outcomes import RequestFault, Trouble

_OVERLOADED = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_DETAIL = 120


class Http:
    """Requests to one server. It has as many connections as the load needs, and follows no proxy."""

    def __init__(self, server: str, key: str | None, timeout_seconds: float) -> None:
        self.server = server.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(
            base_url=self.server,
            timeout=httpx.Timeout(timeout_seconds, connect=min(timeout_seconds, 10.0)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def json(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Return the JSON of the response. Raise `RequestFault`."""
        response = await self.send(method, path, body, headers)
        try:
            return response.json()
        except ValueError:
            raise RequestFault(Trouble.BROKEN, "the response is no JSON") from None

    async def content(self, url: str, *, has_key: bool = True) -> bytes:
        """Return the bytes at a path of the server or, without the key, at a URL elsewhere."""
        is_own = has_key and (url.startswith("/") or url.startswith(f"{self.server}/"))
        response = await self.send("GET", url, headers=None if is_own else {"authorization": ""})
        return response.content

    async def send(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Return the response, which is no error. Raise `RequestFault`."""
        given = {**self._headers, **(headers or {})}
        given = {name: value for name, value in given.items() if value}
        try:
            response = await self._client.request(method, path, json=body, headers=given)
        except httpx.TimeoutException as error:
            is_early = isinstance(error, httpx.ConnectTimeout)
            raise RequestFault(Trouble.CONNECT if is_early else Trouble.TIMEOUT) from error
        except httpx.ConnectError as error:
            raise RequestFault(Trouble.CONNECT, str(error)[:_MAX_DETAIL]) from error
        except httpx.TransportError as error:
            raise RequestFault(Trouble.BROKEN, type(error).__name__) from error
        if response.is_error:
            trouble = Trouble.OVERLOADED if response.status_code in _OVERLOADED else Trouble.REFUSED
            raise RequestFault(trouble, _detail(response))
        return response


def _detail(response: httpx.Response) -> str:
    """Return the status with the server's code or sentence, in the forms that servers use."""
    told = ""
    try:
        body = response.json()
        error = body.get("error", body) if isinstance(body, dict) else {}
        told = error if isinstance(error, str) else error.get("code") or error.get("message") or ""
    except (ValueError, AttributeError):
        pass
    return f"{response.status_code} {told}".strip()[:_MAX_DETAIL]
