"""The running control plane of `diffuserve api` and `diffuserve serve`."""

import gc
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

from diffuserve.api.server.http_server import serving
from diffuserve.cli.servers.event_loop import stop_on_signals
from diffuserve.cli.servers.listening import accept, address_of, bind, description_of
from diffuserve.domain.addresses import is_loopback
from diffuserve.domain.errors import InvalidParams
from diffuserve.settings import Settings
from diffuserve.telemetry.redaction import redacted_logs
from diffuserve.wiring.control import ControlPlane, control_plane
from diffuserve.wiring.open_server import check_origins, warn_of_open_server, warn_of_shared_name

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunningServer:
    """A control plane that listens: `address` is its URL on this machine, `listens_on` says where it does."""

    plane: ControlPlane
    address: str
    listens_on: str = ""


@asynccontextmanager
async def running_server(
    settings: Settings, no_auth: bool = False, listener: socket.socket | None = None
) -> AsyncIterator[RunningServer]:
    """Serve a control plane within the block, on a socket that is bound already or on one of the settings.

    Raise `InvalidParams` if other machines could reach it and there is no API key, but with `no_auth`.
    """
    with redacted_logs(), closing(listener or bind(settings.host, settings.port)) as bound:
        async with _running_server(settings, no_auth, bound) as server:
            yield server


@asynccontextmanager
async def _running_server(
    settings: Settings, no_auth: bool, listener: socket.socket
) -> AsyncIterator[RunningServer]:
    async with control_plane(settings, no_auth) as plane:
        gc.freeze()  # imported modules stay: collecting them would delay the start and requests by 0.1 s
        gc.enable()
        if not (plane.has_auth or no_auth or is_loopback(settings.host)):
            raise InvalidParams(
                "host",
                settings.host,
                "other machines could reach the server, and there is no API key yet; create one with "
                "`diffuserve keys create`, or accept everyone with --no-auth",
            )
        check_origins(plane)
        accept(listener)
        if not plane.has_auth:
            warn_of_open_server(description_of(listener), no_auth)
        await warn_of_shared_name(plane.store)
        async with serving(plane.app, listener, settings.connection_limits):
            yield RunningServer(plane, address_of(listener), description_of(listener))


async def run_api(settings: Settings, no_auth: bool) -> None:
    """Serve a control plane until a signal stops it."""
    stop = stop_on_signals()
    async with running_server(settings, no_auth) as server:
        log.info("listening on %s", server.listens_on)
        print(server.address, flush=True)
        await stop.wait()
