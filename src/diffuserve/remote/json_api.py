"""A client of JSON APIs over HTTP whose servers are not trusted: they may be slow, faulty or hostile."""

import asyncio
import math
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx
import orjson

from diffuserve.domain.errors import InvalidParams

_MAX_RESPONSE_BYTES = 256 << 10
_MAX_PORT = 65_535


class RemoteCallFailed(Exception):
    """The request got no valid response. Messages quote nothing from the server: it may echo the key."""


class RemoteCallTimedOut(RemoteCallFailed):
    """The response was not complete before the deadline."""


@dataclass(frozen=True, kw_only=True)
class JsonApiConfig:
    """The address and key of an API, and the deadline of its calls.

    `url` is the API's base, with or without `/v1`; `timeout_seconds`, above 0, bounds a whole call.
    `url_setting` is the name of the setting that holds the URL, for error messages. Raise `InvalidParams`
    for values with which no call can succeed.
    """

    url_setting: str
    url: str
    path: str
    key: str | None = field(default=None, repr=False)
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        if not _is_base_url(self.url):
            shown = "…" if "@" in self.url else self.url  # it may hold a password
            raise InvalidParams(self.url_setting, shown, "must be a URL such as http://127.0.0.1:8001/v1")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise InvalidParams(f"{self._name}_key", "…", "must be printable ASCII: it is sent in a header")
        if not 0 < self.timeout_seconds < math.inf:
            raise InvalidParams(f"{self._name}_timeout_seconds", self.timeout_seconds, "must be positive")

    @property
    def _name(self) -> str:
        return self.url_setting.removesuffix("_url")

    @property
    def call_url(self) -> str:
        """The full URL of a call: the base, `/v1` and the path, each exactly once."""
        base = self.url.rstrip("/").removesuffix(self.path)
        return base + self.path if base.endswith("/v1") else f"{base}/v1{self.path}"


class JsonApi:
    """Sends one request for each call. Redirects are not followed: they would carry the key elsewhere."""

    def __init__(self, config: JsonApiConfig, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._config = config
        headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "content-type": "application/json",
        }
        if config.key:
            headers["authorization"] = f"Bearer {config.key}"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=None,  # noqa: S113 (`post` sets one deadline for the whole call instead)
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # no state between calls
            trust_env=False,  # a proxy that the environment names would see every prompt
            transport=transport,
        )

    async def post(self, body: Any) -> bytes:
        """Return the content of the response to `body`, at most 256 KiB.

        Raise `RemoteCallTimedOut` after `timeout_seconds`, `RemoteCallFailed` if the server is unreachable,
        its status is no success, or the response is compressed or too long.
        """
        content = orjson.dumps(body)
        try:
            async with asyncio.timeout(self._config.timeout_seconds):
                return await self._post_with_retry(content)
        except TimeoutError as error:
            raise RemoteCallTimedOut(f"did not respond within {self._config.timeout_seconds:g} s") from error
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise RemoteCallFailed(f"cannot be reached ({type(error).__name__})") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _post_with_retry(self, content: bytes) -> bytes:
        """Send the request once more if its connection breaks.

        A server may close an idle connection at the moment in which it is used again.
        """
        try:
            return await self._post(content)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            return await self._post(content)

    async def _post(self, content: bytes) -> bytes:
        async with self._client.stream("POST", self._config.call_url, content=content) as response:
            _check_head(response)
            return await _read(response)


def _is_base_url(url: str) -> bool:
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError):
        return False
    is_plain = not (parts.userinfo or parts.query or parts.fragment)
    is_http = parts.scheme in ("http", "https") and bool(parts.host)
    return is_plain and is_http and (parts.port or 80) <= _MAX_PORT


def _check_head(response: httpx.Response) -> None:
    if response.is_redirect:
        raise RemoteCallFailed(f"responded with {response.status_code}; redirects are not followed")
    if not response.is_success:
        raise RemoteCallFailed(f"responded with {response.status_code}")
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise RemoteCallFailed("sent a compressed response, which was not accepted")


async def _read(response: httpx.Response) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > _MAX_RESPONSE_BYTES:
            raise RemoteCallFailed(f"sent more than {_MAX_RESPONSE_BYTES:,} bytes")
    return bytes(content)
