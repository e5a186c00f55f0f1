"""The running control plane of `diffuserve api` and `diffuserve serve`."""

import gc
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

from diffuserve.api.door.origins import EVERY_ORIGIN
from diffuserve.api.server.http_server import serving
from diffuserve.cli.servers.event_loop import stop_on_signals
from diffuserve.cli.servers.listening import accept, address_of, bind, description_of
from diffuserve.domain.addresses import is_loopback
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.tenant import OPERATOR_TENANT
from diffuserve.jobs.store import JobStore
from diffuserve.settings import Settings
from diffuserve.telemetry.redaction import redacted_logs
from diffuserve.wiring.control import ControlPlane, control_plane

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


def check_origins(plane: ControlPlane) -> None:
    """Raise `InvalidParams` if the pages of every site could use a server that requires no keys."""
    if not plane.has_auth and EVERY_ORIGIN in plane.app.state.services.config.allowed_origins:
        raise InvalidParams(
            "allowed_origins",
            EVERY_ORIGIN,
            "every page that a browser shows could use this server, which requires no key; name the origins, "
            "or create a key with `diffuserve keys create`",
        )


def warn_of_open_server(address: str, no_auth: bool) -> None:
    """Log that everyone may do everything, and how to change that."""
    reason = "--no-auth was given" if no_auth else "there has never been an API key"
    remedy = "start it without --no-auth" if no_auth else "create a key with `diffuserve keys create`"
    log.warning(
        "OPEN SERVER: %s, so everyone who reaches %s may submit, read, cancel and delete every job, "
        "and act as a worker or an operator; to close it, %s",
        reason,
        address,
        remedy,
    )


async def warn_of_shared_name(store: JobStore) -> None:
    """Log that a tenant has the name of operators, which was free once."""
    if await store.keys.has_tenant_key(OPERATOR_TENANT):
        log.warning(
            "a key was made for the tenant %r, which sees what operators submit; "
            "make it one for another tenant with `diffuserve keys create`, and revoke the old one",
            OPERATOR_TENANT,
        )


async def run_api(settings: Settings, no_auth: bool) -> None:
    """Serve a control plane until a signal stops it."""
    stop = stop_on_signals()
    async with running_server(settings, no_auth) as server:
        log.info("listening on %s", server.listens_on)
        print(server.address, flush=True)
        await stop.wait()
