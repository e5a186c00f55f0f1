"""The client of the commands that use a server."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.sdk.async_client import AsyncClient

PATIENCE_SECONDS = 5.0  # a person waits: fail soon if the server is down
WAITING_PATIENCE_SECONDS = 120.0  # the job is safe; the server may be starting again
_ANOTHER = "--server or DIFFUSERVE_SERVER names another"


@asynccontextmanager
async def connect(
    settings: Settings, *, patience_seconds: float | None = None
) -> AsyncIterator["AsyncClient"]:
    """Yield a client of the server that the settings name.

    It retries requests for `patience_seconds` while the server is unavailable, by default a few seconds. If
    the server does not respond, `ServerUnavailable` tells the way to another one.
    """
    from diffuserve.sdk.async_client import AsyncClient  # it imports httpx

    patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    async with AsyncClient(settings.server, settings.api_key, patience_seconds=patience) as client:
        try:
            yield client
        except ServerUnavailable as error:
            if error.__cause__ is None:  # it did respond
                raise
            raise ServerUnavailable(f"{error}; {_ANOTHER}") from error


def check_listening(settings: Settings) -> None:
    """Raise `ServerUnavailable` if nothing listens at the server's address, without an HTTP client.

    What listens there may still be another server than ours.
    """
    parts = urlsplit(settings.server)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=PATIENCE_SECONDS).close()
    except OSError as error:
        reason = os.strerror(error.errno) if isinstance(error, ConnectionError) and error.errno else error
        address = settings.server.rstrip("/")
        raise ServerUnavailable(f"{address} does not respond ({reason}); {_ANOTHER}") from error
