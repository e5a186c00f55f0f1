"""Revocation of a key ends what was opened with it: streams, WebSockets and long polls."""

import asyncio
import logging
from collections import defaultdict

from starlette.requests import HTTPConnection

from diffuserve.api.auth.access import Authenticator, Caller
from diffuserve.api.http.interruptible import OpenRequest, open_request
from diffuserve.api.http.problems import problem_of, problem_response
from diffuserve.domain.errors import ServerUnavailable, Unauthorized
from diffuserve.telemetry.log_fields import once_a_minute

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 2.0


class RevocationWatch:
    """Looks every two seconds which keys of open requests are still valid, with one query for all of them."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._open: defaultdict[str, set[OpenRequest]] = defaultdict(set)

    def add(self, connection: HTTPConnection, caller: Caller) -> None:
        """Watch a request of this caller until it ends."""
        request = open_request(connection.scope)
        if request is not None and caller.key_id is not None:
            request.join(self._open[caller.key_id])

    async def run(self) -> None:
        """End requests of revoked keys, until the task is canceled."""
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            try:
                await self.end_revoked()
            except ServerUnavailable as error:
                log.warning("cannot see which keys were revoked: %s", error, extra=once_a_minute())

    async def end_revoked(self) -> None:
        """End every open request whose key is not valid any more."""
        for key_id in [key_id for key_id, requests in self._open.items() if not requests]:
            del self._open[key_id]
        for key_id in await self._authenticator.invalid_among(set(self._open)):
            for request in list(self._open.get(key_id, ())):
                _end(request)


def _end(request: OpenRequest) -> None:
    problem = problem_of(Unauthorized("the API key is not valid any more"))
    request.end(problem_response(problem, HTTPConnection(request.scope)))
