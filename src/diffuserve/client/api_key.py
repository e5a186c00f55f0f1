"""An API key in a file, which may be replaced while its owner runs."""

import logging
from collections.abc import Generator
from pathlib import Path

import httpx

from diffuserve.domain.errors import InvalidParams

log = logging.getLogger(__name__)


class KeyFile(httpx.Auth):
    """Authenticates requests by the key in a file, which is read again when the server refuses the key."""

    def __init__(self, path: Path) -> None:
        """Raise `InvalidParams` if there is no key in the file."""
        self._path = path
        self._key = read_key_file(path)
        self._complaint = ""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        """Send the request, and once more if it is refused and the file has another key."""
        used = self._key  # other requests, sent at the same time, may change it
        request.headers["authorization"] = f"Bearer {used}"
        response = yield request
        if response.status_code != httpx.codes.UNAUTHORIZED:
            return
        self._read_again()
        if self._key != used:
            request.headers["authorization"] = f"Bearer {self._key}"
            yield request

    def _read_again(self) -> None:
        try:
            self._key = read_key_file(self._path)
            self._complaint = ""
        except InvalidParams as error:
            if str(error) != self._complaint:  # every request is refused meanwhile
                log.warning("the API key was refused, and there is no other: %s", error)
            self._complaint = str(error)


def read_key_file(path: Path) -> str:
    """Return the API key in the file. Raise `InvalidParams` if there is none."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParams("api_key_file", str(path), f"cannot be read: {error}") from error
    if not key or not key.isascii() or not key.isprintable():
        raise InvalidParams("api_key_file", str(path), "must hold one API key and nothing else")
    return key
