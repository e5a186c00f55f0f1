"""Headers that let pages of other sites use the API from a browser (CORS)."""

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

_METHODS = ("GET", "HEAD", "POST", "DELETE")  # those of clients; workers alone use PUT
_EXPOSED = (
    "accept-ranges",
    "content-disposition",
    "content-range",
    "etag",
    "location",
    "preference-applied",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "x-request-id",
    "x-should-retry",
)


def allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Let browsers show the responses to pages of these origins, and send what such pages ask for.

    The session's cookie is the web page's alone: a page of another site sends a key of its own.
    """
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=["*"],
            expose_headers=_EXPOSED,
            allow_private_network=True,
        )
