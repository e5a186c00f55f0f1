"""A worker inside the server's process: its agent shares the event loop, and calls the application directly.

Only its engine is a process of its own. The agent needs no port, and ends with the process.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from dataclasses import replace

import httpx
from starlette.types import ASGIApp

from diffuserve.agent.agent import WorkerAgent
from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.exit_codes import CANNOT_START
from diffuserve.agent.main import open_agent
from diffuserve.backoff import supervise
from diffuserve.domain.tenant import Role
from diffuserve.modelstore.adapters.adapter_store import AdapterStore
from diffuserve.settings import Settings
from diffuserve.wiring.control import ControlPlane
from diffuserve.wiring.own_worker import (
    RESTARTS,
    STOP_MARGIN,
    log_restart,
    name_of,
    release_jobs_of,
    wait_until_ready,
)
from diffuserve.wiring.worker import checked

_HOST = "localhost"
"""Name by which the agent calls the application beside it; nothing is looked up or connected."""


@asynccontextmanager
async def inner_worker(
    settings: Settings, engine_command: tuple[str, ...] = ()
) -> AsyncIterator["InnerWorker"]:
    """Run a worker within the block; its engine starts at once, and all else once it has joined.

    Raise `InvalidParams` as `checked` does.
    """
    worker = InnerWorker(settings, replace(_config(settings), engine_command=engine_command))
    try:
        yield worker
    finally:
        await worker.stop()


def _config(settings: Settings) -> WorkerConfig:
    config = settings.worker
    return replace(
        config,
        server=f"http://{_HOST}",
        engine_process=checked(config.engine_process),
        further=tuple(map(checked, config.further)),
        api_key=None,
        api_key_file=None,
        name=_name(settings),
    )


def _name(settings: Settings) -> str:
    """Return the worker's name, which is that of no other: several on one machine may share a database."""
    is_alone = settings.database_url is None  # on its data folder, with its successors
    return name_of(settings) if is_alone else f"{name_of(settings)}:{secrets.token_hex(4)}"


class InnerWorker:
    """Runs one agent after another, in this event loop; `task` ends early only if none can start."""

    def __init__(self, settings: Settings, config: WorkerConfig) -> None:
        self._settings, self._config = settings, config
        self._transport = _ToApp()
        self._agent: WorkerAgent | None = None
        self._stopping = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def join(self, plane: ControlPlane, app: ASGIApp) -> None:
        """Work for a control plane that `app` serves, and wait until the model is loaded.

        Raise `ServerUnavailable` if it cannot be; the log has the reason.
        """
        known = frozenset(worker.id for worker in await plane.store.operations.workers())
        if self._settings.database_url is None:
            await release_jobs_of(plane.store, self._config.name)
        self._transport.open(app, plane.authenticator.admit(Role.WORKER))
        await wait_until_ready(self.task, plane.store, known)

    async def stop(self) -> None:
        """Let the worker finish what it can in its time, and release the rest."""
        self._stopping.set()
        if self._agent is not None:
            self._agent.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_seconds + STOP_MARGIN):
                await asyncio.wait({self.task})
        self.task.cancel()
        await asyncio.wait({self.task})
        await self._transport.end()

    async def _run(self) -> int:
        """Run until stopped, or until an agent cannot start; return its exit code."""
        return await supervise(
            self._run_once,
            RESTARTS,
            is_final=lambda code: code == CANNOT_START,
            on_restart=log_restart,
            stop=self._stopping,
        )

    async def _run_once(self) -> int:
        fetch = AdapterStore(self._config.engine_process.stored).fetch
        async with open_agent(self._config, fetch, self._transport) as self._agent:
            if self._stopping.is_set():
                self._agent.drain()
            return await self._agent.run()


class _ToApp(httpx.AsyncBaseTransport):
    """Carries the agent's requests to the application in this process, and others to their servers.

    Those to the application wait until there is one.
    """

    def __init__(self) -> None:
        self._app: asyncio.Future[tuple[httpx.ASGITransport, str]] = asyncio.Future()
        self._elsewhere = httpx.AsyncHTTPTransport()

    def open(self, app: ASGIApp, key: str) -> None:
        """Send requests to `app` from now on, with this API key."""
        self._app.set_result((httpx.ASGITransport(app, raise_app_exceptions=False), f"Bearer {key}"))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.host != _HOST or request.url.port is not None:
            return await self._elsewhere.handle_async_request(request)
        app, request.headers["authorization"] = await asyncio.shield(self._app)
        # A context of its own, as in a server: neither side's log lines have the other's values.
        return await asyncio.create_task(app.handle_async_request(request), context=Context())

    async def aclose(self) -> None:
        """Do nothing: an agent has ended, and another one may follow."""

    async def end(self) -> None:
        """Close every connection."""
        await self._elsewhere.aclose()
