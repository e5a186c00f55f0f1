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
    plane: ControlPlane, app: ASGIApp, settings: Settings, engine_command: tuple[str, ...] = ()
) -> AsyncIterator[asyncio.Task[int]]:
    """Run a worker of the control plane, which `app` serves, within the block; it begins once one is ready.

    The task ends early only if the worker cannot start. Raise `ServerUnavailable` if that is so at once, and
    `InvalidParams` as `checked` does.
    """
    known = frozenset(worker.id for worker in await plane.store.operations.workers())
    if settings.database_url is None:
        await release_jobs_of(plane.store, name_of(settings))
    key = plane.authenticator.admit(Role.WORKER)
    worker = _InnerWorker(replace(_config(settings, key), engine_command=engine_command), app)
    task = asyncio.create_task(worker.run())
    try:
        await wait_until_ready(task, plane.store, known)
        yield task
    finally:
        await worker.stop(task)


def _config(settings: Settings, key: str) -> WorkerConfig:
    config = settings.worker
    return replace(
        config,
        server=f"http://{_HOST}",
        engine_process=checked(config.engine_process),
        further=tuple(map(checked, config.further)),
        api_key=key,
        api_key_file=None,
        name=_name(settings),
    )


def _name(settings: Settings) -> str:
    """Return the worker's name, which is that of no other: several on one machine may share a database."""
    is_alone = settings.database_url is None  # on its data folder, with its successors
    return name_of(settings) if is_alone else f"{name_of(settings)}:{secrets.token_hex(4)}"


class _InnerWorker:
    """Runs one agent after another, in this event loop."""

    def __init__(self, config: WorkerConfig, app: ASGIApp) -> None:
        self._config, self._app = config, app
        self._agent: WorkerAgent | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Run until stopped, or until an agent cannot start; return its exit code."""
        return await supervise(
            self._run_once,
            RESTARTS,
            is_final=lambda code: code == CANNOT_START,
            on_restart=log_restart,
            stop=self._stopping,
        )

    async def stop(self, running: asyncio.Task[int]) -> None:
        """Let the worker finish what it can in its time, and release the rest."""
        self._stopping.set()
        if self._agent is not None:
            self._agent.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_seconds + STOP_MARGIN):
                await asyncio.wait({running})
        running.cancel()
        await asyncio.wait({running})

    async def _run_once(self) -> int:
        fetch = AdapterStore(self._config.engine_process.stored).fetch
        async with open_agent(self._config, fetch, _ToApp(self._app)) as self._agent:
            return await self._agent.run()


class _ToApp(httpx.AsyncBaseTransport):
    """Carries the agent's requests to the application in this process, and others to their servers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._elsewhere = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.host != _HOST or request.url.port is not None:
            return await self._elsewhere.handle_async_request(request)
        handled = self._app.handle_async_request(request)
        # A context of its own, as in a server: neither side's log lines have the other's values.
        return await asyncio.create_task(handled, context=Context())

    async def aclose(self) -> None:
        await self._elsewhere.aclose()
