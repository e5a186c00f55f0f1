"""JSON over HTTP, asked of a server of somebody else's, which may be slow, wrong or hostile."""

import asyncio
import math
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx
import orjson

from diffuserve.domain.errors import InvalidParams

_MAX_ANSWER_BYTES = 256 << 10
_LAST_PORT = 65_535


class BadAnswer(Exception):
    """No answer that could be read. Its text quotes nothing that the server said, which may be the key."""


class Late(BadAnswer):
    """No answer in time."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """`url` is the API's base, with or without `/v1`; `timeout_seconds` bounds a whole call.

    `url_setting` is what the operator calls the URL, and what errors name. Raises `InvalidParams` for
    what no call could be made with.
    """

    url_setting: str
    url: str
    path: str
    key: str | None = field(default=None, repr=False)
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        if not _is_base(self.url):
            shown = "…" if "@" in self.url else self.url  # it may hold a password
            raise InvalidParams(self.url_setting, shown, "must be a URL such as http://127.0.0.1:8001/v1")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise InvalidParams(f"{self._name}_key", "…", "must be printable ASCII: it travels in a header")
        if not 0 < self.timeout_seconds < math.inf:
            raise InvalidParams(f"{self._name}_timeout_seconds", self.timeout_seconds, "must be positive")

    @property
    def _name(self) -> str:
        return self.url_setting.removesuffix("_url")

    @property
    def call_url(self) -> str:
        base = self.url.rstrip("/").removesuffix(self.path)
        return base + self.path if base.endswith("/v1") else f"{base}/v1{self.path}"


class JsonApi:
    """One request for each call. Redirects are not followed, since they would take the key along."""

    def __init__(self, endpoint: Endpoint, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._endpoint = endpoint
        headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "content-type": "application/json",
        }
        if endpoint.key:
            headers["authorization"] = f"Bearer {endpoint.key}"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=None,  # one deadline for the whole call instead
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # calls know nothing of one another
            trust_env=False,  # a proxy that the environment names would see every prompt
            transport=transport,
        )

    async def post(self, body: Any) -> bytes:
        """What the server says to `body`; whatever it does, in time or not at all.

        Raises `Late` and `BadAnswer`.
        """
        content = orjson.dumps(body)
        try:
            async with asyncio.timeout(self._endpoint.timeout_seconds):
                return await self._ask_again_if_cut(content)
        except TimeoutError as error:
            raise Late(f"did not answer within {self._endpoint.timeout_seconds:g} s") from error
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise BadAnswer(f"cannot be reached ({type(error).__name__})") from error

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask_again_if_cut(self, content: bytes) -> bytes:
        """A server may close a connection that was kept open just when it is used again."""
        try:
            return await self._ask(content)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            return await self._ask(content)

    async def _ask(self, content: bytes) -> bytes:
        async with self._client.stream("POST", self._endpoint.call_url, content=content) as answer:
            _check_head(answer)
            return await _read(answer)


def _is_base(url: str) -> bool:
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError):
        return False
    plain = not (parts.userinfo or parts.query or parts.fragment)
    is_http = parts.scheme in ("http", "https") and bool(parts.host)
    return plain and is_http and (parts.port or 80) <= _LAST_PORT


def _check_head(answer: httpx.Response) -> None:
    if answer.is_redirect:
        raise BadAnswer(f"answered {answer.status_code}; redirects are not followed")
    if not answer.is_success:
        raise BadAnswer(f"answered {answer.status_code}")
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise BadAnswer("answered with what is no JSON")


async def _read(answer: httpx.Response) -> bytes:
    content = bytearray()
    async for chunk in answer.aiter_raw():
        content += chunk
        if len(content) > _MAX_ANSWER_BYTES:
            raise BadAnswer(f"answered with more than {_MAX_ANSWER_BYTES:,} bytes")
    return bytes(content)
