"""From the command line's options to a client."""

from diffuserve.client.jobs import Client
from diffuserve.settings import Settings

PATIENCE_SECONDS = 5.0  # a person watches: say soon that nobody answers
WAITING_PATIENCE_SECONDS = 120.0  # the job is safe; the server may be starting again


def connect(server: str | None, key: str | None, *, patience_seconds: float | None = None) -> Client:
    settings = Settings.with_options(server=server, api_key=key)
    return Client(settings.server, settings.api_key, patience_seconds=patience_seconds or PATIENCE_SECONDS)
