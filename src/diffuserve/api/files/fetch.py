"""Images that requests name by their URLs, fetched from the public internet."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urljoin, urlsplit

from diffuserve.api.config import ApiConfig
from diffuserve.api.outbound.address_policy import AddressPolicy
from diffuserve.api.outbound.guarded_http import (
    AddressNotAllowed,
    Fetched,
    GuardedHttpClient,
    Resolve,
    ResponseTooLarge,
    TooSlow,
)
from diffuserve.domain.errors import InvalidParams, TooLarge
from diffuserve.safety.processes.fair_slots import FairSlots

_AT_ONCE, _AT_ONCE_OF_A_TENANT = 16, 4
_MAX_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TYPES = ("image/", "application/octet-stream", "binary/octet-stream")
_HEADERS = {
    "accept": "image/png, image/jpeg, image/webp",
    "accept-encoding": "identity",
    "user-agent": "diffuserve",
}


class ImageFetcher:
    """Fetches images over https, from public addresses and those that the operator allows.

    Each address is checked when it is connected to, including that of a redirect, and nothing from the
    caller's request is sent along.
    """

    def __init__(
        self,
        config: ApiConfig,
        *,
        resolve: Resolve | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = AddressPolicy(
            config.input_url_allowed_networks, config.input_url_allowed_ports, settings="INPUT_URL"
        )
        self._http = GuardedHttpClient(self._policy, resolve=resolve, ssl_context=ssl_context)
        self._turns = FairSlots(_AT_ONCE, _AT_ONCE_OF_A_TENANT)
        self._max_bytes = config.max_input_file_bytes
        self._seconds = config.input_url_seconds

    @asynccontextmanager
    async def fetched(self, tenant_id: str, field: str, url: str) -> AsyncIterator[bytes]:
        """Fetch the file at a URL, and hold its slot within the block, which limits the files in memory.

        Raise `InvalidParams`, which names `field`, or `TooLarge`.
        """
        async with self._turns.turn(tenant_id):
            yield await self._follow(field, url)

    async def close(self) -> None:
        """Close every connection."""
        await self._http.close()

    async def _follow(self, field: str, url: str) -> bytes:
        at = url
        for _ in range(_MAX_REDIRECTS + 1):
            self._check(field, url, at)
            response = await self._get(field, url, at)
            if response.status not in _REDIRECTS:
                return _image_in(field, url, response)
            at = urljoin(at, response.headers.get("location", ""))
        raise _refused(field, url, f"is redirected more than {_MAX_REDIRECTS} times")

    def _check(self, field: str, url: str, at: str) -> None:
        """Raise `InvalidParams` unless `at`, to which `url` has led, may be fetched."""
        if urlsplit(at).scheme.lower() != "https":
            where = "" if at == url else ", and so must what it redirects to"
            raise _refused(field, url, f"must be an https URL{where}")
        try:
            self._policy.check(field, at)
        except InvalidParams as error:
            raise _refused(field, url, error.remedy) from error

    async def _get(self, field: str, url: str, at: str) -> Fetched:
        try:
            return await self._http.get(at, _HEADERS, self._max_bytes, self._seconds)
        except ResponseTooLarge as error:
            most = f"more than {self._max_bytes:,} bytes"
            raise TooLarge(f"{field}: the image at its URL has {most}; name a smaller one") from error
        except AddressNotAllowed as error:
            raise _refused(field, url, str(error)) from error
        except TooSlow as error:
            raise _refused(field, url, f"is sent too slowly: {error}") from error
        except TimeoutError as error:
            raise _refused(field, url, f"has not sent an image within {self._seconds:g} s") from error
        except OSError as error:
            raise _refused(field, url, f"cannot be reached ({error})") from error


def _image_in(field: str, url: str, response: Fetched) -> bytes:
    if response.status != 200:
        raise _refused(field, url, f"responds with status {response.status}")
    content_type = response.headers.get("content-type", "")
    if content_type and not content_type.lower().startswith(_TYPES):
        raise _refused(field, url, f"sends {content_type[:60]!r}, which is no image")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise _refused(field, url, "sends an encoded body, which was not asked for")
    return response.body


def _refused(field: str, url: str, reason: str) -> InvalidParams:
    return InvalidParams(field, url, f"{reason}; or upload the image with POST /v1/files, and name its id")
