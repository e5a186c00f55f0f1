"""Requests to a cloud's metadata service, at an address that no user's input can name or change."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from diffuserve.domain.errors import ServerUnavailable

LINK_LOCAL = "http://169.254.169.254"
"""Address of the metadata service in each of the clouds. Nothing but tests gives another."""
_TIMEOUT_SECONDS = 2.0
_LONGEST_SECONDS = 180.0  # each request has a shorter time of its own
_MAX_BYTES = 65_536
_MAX_CHARACTERS = 60


@dataclass(frozen=True)
class MetadataReply:
    """Response of a metadata service that is neither overloaded nor broken."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def object(self) -> dict[str, Any]:
        """JSON object of the response. Raise `ServerUnavailable` if it holds none."""
        try:
            parsed = orjson.loads(self.text)
        except orjson.JSONDecodeError:
            parsed = None
        if not isinstance(parsed, dict):
            raise ServerUnavailable("the metadata service responds with what is no JSON object")
        return parsed


class MetadataService:
    """Client of one metadata service: through no proxy, to no other address, and never for long."""

    def __init__(self, address: str, headers: Mapping[str, str] | None = None) -> None:
        self._address = address
        self._client = httpx.AsyncClient(
            base_url=address, headers=headers, trust_env=False, timeout=_LONGEST_SECONDS
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def ask(self, method: str, path: str, wait_seconds: float = 0.0, **parts: Any) -> MetadataReply:
        """Return the response, which the service may delay by `wait_seconds`. Raise `ServerUnavailable`."""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS + wait_seconds):
                reply = await self._send(method, path, parts)
        except TimeoutError:
            raise ServerUnavailable(f"{self._address}{path} does not respond") from None
        except httpx.HTTPError as error:
            raise ServerUnavailable(f"{self._address}{path} does not respond ({error})") from error
        if reply.status >= 500 or reply.status == 429:
            raise ServerUnavailable(f"{self._address}{path} responds with {reply.status}")
        return reply

    async def read(self, path: str, wait_seconds: float = 0.0, **parts: Any) -> MetadataReply:
        """Return the response to a GET that must succeed. Raise `ServerUnavailable`."""
        reply = await self.ask("GET", path, wait_seconds, **parts)
        if reply.status != 200:
            raise ServerUnavailable(f"{self._address}{path} responds with {reply.status}")
        return reply

    async def _send(self, method: str, path: str, parts: Mapping[str, Any]) -> MetadataReply:
        async with self._client.stream(method, path, **parts) as response:
            content = b""
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > _MAX_BYTES:
                    raise ServerUnavailable(f"{self._address}{path} responds with too much")
            return MetadataReply(response.status_code, response.headers, content.decode(errors="replace"))


def shown(value: object) -> str:
    """Return what a metadata service says in a form that the log and operators may see."""
    text = str(value)[:_MAX_CHARACTERS]
    return "".join(character if character.isprintable() else "?" for character in text)
