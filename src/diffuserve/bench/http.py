"""One exchange over HTTP, whose failures are told by kind and never retried."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from diffuserve.bench.outcomes import RequestFault, Trouble

_OVERLOADED = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_DETAIL = 120
_MAX_BYTES = 512 * 2**20
"""A response's most; a server under load is not one to be trusted."""


@dataclass(frozen=True)
class Answer:
    """A response that was read to its end."""

    status: int
    content: bytes

    def json(self) -> Any:
        """Return the JSON that it holds. Raise `ValueError`."""
        return json.loads(self.content)


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
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        as_form: bool = False,
    ) -> Any:
        """Return the JSON of the response. Raise `RequestFault`."""
        response = await self.send(method, path, body, headers, as_form=as_form)
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
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        as_form: bool = False,
    ) -> Answer:
        """Return the response, which is no error; the body is JSON or a form. Raise `RequestFault`."""
        given = {**self._headers, **(headers or {})}
        given = {name: value for name, value in given.items() if value}
        try:
            sent = {"files": _fields(body)} if as_form else {"json": body}
            async with self._client.stream(method, path, headers=given, **sent) as response:
                answer = Answer(response.status_code, await _read(response))
        except httpx.TimeoutException as error:
            is_early = isinstance(error, httpx.ConnectTimeout)
            raise RequestFault(Trouble.CONNECT if is_early else Trouble.TIMEOUT) from error
        except httpx.ConnectError as error:
            raise RequestFault(Trouble.CONNECT, str(error)[:_MAX_DETAIL]) from error
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise RequestFault(Trouble.BROKEN, type(error).__name__) from error
        if response.is_error:
            trouble = Trouble.OVERLOADED if answer.status in _OVERLOADED else Trouble.REFUSED
            raise RequestFault(trouble, _detail(answer))
        return answer


def _fields(body: Mapping[str, object]) -> dict[str, tuple[None, str]]:
    """Return the fields of a multipart form without files."""
    return {
        name: (None, value if isinstance(value, str) else json.dumps(value)) for name, value in body.items()
    }


async def _read(response: httpx.Response) -> bytes:
    """Return the content. Raise `RequestFault` if it does not end."""
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > _MAX_BYTES:
            raise RequestFault(Trouble.BROKEN, f"more than {_MAX_BYTES} bytes")
    return bytes(content)


def _detail(answer: Answer) -> str:
    """Return the status with the server's code or sentence, in the forms that servers use."""
    told = ""
    try:
        body = answer.json()
        error = body.get("error", body) if isinstance(body, dict) else {}
        told = error if isinstance(error, str) else error.get("code") or error.get("message") or ""
    except (ValueError, AttributeError, RecursionError):
        pass
    return f"{answer.status} {told}".strip()[:_MAX_DETAIL]
