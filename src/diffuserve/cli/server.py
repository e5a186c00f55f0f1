"""The running control plane of `diffuserve api` and `diffuserve serve`."""

import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

from diffuserve.cli.http_server import address_of, is_loopback, listen, serving, stop_on_signals
from diffuserve.cli.wiring.control import ControlPlane, control_plane
from diffuserve.domain.errors import InvalidParams
from diffuserve.settings import Settings
from diffuserve.telemetry.redaction import redacted_logs


@dataclass(frozen=True)
class RunningServer:
    """A control plane that listens; `address` is its URL on this machine."""

    plane: ControlPlane
    address: str


@asynccontextmanager
async def running_server(settings: Settings, no_auth: bool = False) -> AsyncIterator[RunningServer]:
    """Serve a control plane within the block.

    Raise `InvalidParams` if other machines could reach it and there is no API key, but with `no_auth`.
    """
    with redacted_logs():
        async with _running_server(settings, no_auth) as server:
            yield server


@asynccontextmanager
async def _running_server(settings: Settings, no_auth: bool) -> AsyncIterator[RunningServer]:
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
        with closing(listen(settings.host, settings.port)) as listener:
            async with serving(plane.app, listener):
                yield RunningServer(plane, address_of(listener))


async def run_api(settings: Settings, no_auth: bool) -> None:
    """Serve a control plane until a signal stops it."""
    stop = stop_on_signals()
    async with running_server(settings, no_auth) as server:
        logging.getLogger(__name__).info("listening on %s", server.address)
        print(server.address, flush=True)
        await stop.wait()
