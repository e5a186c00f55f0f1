"""The client of the commands that use a server."""

from diffuserve.sdk.async_client import AsyncClient
from diffuserve.settings import Settings

PATIENCE_SECONDS = 5.0  # a person waits: fail soon if the server is down
WAITING_PATIENCE_SECONDS = 120.0  # the job is safe; the server may be starting again


def connect(settings: Settings, *, patience_seconds: float | None = None) -> AsyncClient:
    """Return a client of the server that the settings name.

    It retries requests for `patience_seconds` while the server is unavailable, by default a few seconds.
    """
    patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    return AsyncClient(settings.server, settings.api_key, patience_seconds=patience)
