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
    "idempotent-replayed",
    "location",
    "preference-applied",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "x-diffuserve-ignored",
    "x-diffuserve-job-id",
    "x-diffuserve-seed",
    "x-diffuserve-warnings",
    "x-request-id",
    "x-should-retry",
)


def allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Let pages of these origins send requests and read the responses.

    Only the server's own page uses the session cookie: a page of another site sends an API key.
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
