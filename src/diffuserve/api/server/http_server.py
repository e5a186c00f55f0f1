"""HTTP server that shares its event loop with other tasks."""

import asyncio
import logging
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import uvicorn
from fastapi import FastAPI

from diffuserve.api.http.interruptible import Interruptible
from diffuserve.api.server.connection_limits import ConnectionLimits
from diffuserve.api.server.guarded_protocol import GuardedConfig
from diffuserve.telemetry.redaction import log_loop_error

_GRACE_SECONDS = 1.0  # for open requests
_LONGEST_SHUTDOWN_SECONDS = 5  # then connections are closed, even those of slow readers
_DEFAULT_LIMITS = ConnectionLimits()
_TICKS = 10  # between two looks at connections that do not close
_OTHER_FILES = 512  # of the database, the finished files, webhooks and libraries

log = logging.getLogger(__name__)


@asynccontextmanager
async def serving(
    app: FastAPI, listener: socket.socket, limits: ConnectionLimits = _DEFAULT_LIMITS
) -> AsyncIterator[None]:
    """Serve the application within the block."""
    asyncio.get_running_loop().set_exception_handler(log_loop_error)
    server = HttpServer(Interruptible(app), fitting(limits))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


def fitting(limits: ConnectionLimits) -> ConnectionLimits:
    """Let this process open as many files as the connections need; return limits that fit what it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.max_connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    possible = max(soft - _OTHER_FILES, 1)
    log.warning(
        "max_connections=%d needs %d open files and this process may open %d; it accepts %d connections: "
        "raise the limit with `ulimit -n`",
        *(limits.max_connections, wanted, soft, possible),
    )
    return replace(limits, max_connections=possible)


class HttpServer(uvicorn.Server):
    """Uvicorn, but that its owner handles signals and that long responses are cut short at the end."""

    def __init__(self, app: Interruptible, limits: ConnectionLimits) -> None:
        config = GuardedConfig(
            app,
            limits,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_LONGEST_SHUTDOWN_SECONDS,
        )
        super().__init__(config)
        self._app, self._guard = app, config

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller, which stops the worker before the server."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end; called ten times a second."""
        if counter % _TICKS == 0:
            self._guard.abort_unread(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.cut(only_idle=True)
        cut = asyncio.get_running_loop().call_later(_GRACE_SECONDS, self._app.cut)
        await super().shutdown(sockets)
        cut.cancel()
