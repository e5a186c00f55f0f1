"""The whole server as one ASGI application: for Ray Serve, BentoML, another web framework or a notebook.

It is the application of `diffuserve serve`, with every route, key, limit and filter, and a worker beside it
in the host's process; only the engine is a process of its own, so that its death is not the host's.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from diffuserve.api.http.interruptible import Interruptible
from diffuserve.api.services import Services
from diffuserve.domain.errors import InvalidParams, ServerUnavailable, Unauthorized
from diffuserve.integrations.engine import settings_of
from diffuserve.settings import Settings
from diffuserve.telemetry.redaction import redacted_logs
from diffuserve.wiring.control import ControlPlane, control_plane, open_store
from diffuserve.wiring.data_folder import locked, shared
from diffuserve.wiring.inner_worker import inner_worker
from diffuserve.wiring.open_server import check_origins, warn_of_open_server, warn_of_shared_name


@dataclass(frozen=True)
class _Running:
    """Parts of a server that is running; the task ends early only if its worker cannot start any more."""

    plane: ControlPlane
    app: ASGIApp
    worker: asyncio.Task[int]


class ServerApp(Starlette):
    """An ASGI application that is a control plane with a worker of its own.

    It starts with the host's lifespan, or within `running` where the host has none, and has started once the
    model is loaded. Before that it holds its settings alone, so it can be sent to the process that runs it.
    Without `data_dir` and `database_url` its jobs, keys and files end with it.
    """

    def __init__(
        self, *, no_auth: bool = False, engine_command: tuple[str, ...] = (), **settings: Any
    ) -> None:
        """Take settings by their names; others come from the environment. Raise `InvalidParams`.

        Clients need an API key: one of the database or, where that ends with the application, `api_key`,
        which `diffuserve keys create` has made anywhere. With `no_auth` everyone who reaches the host may do
        everything. `engine_command` replaces the engine, for tests.
        """
        # Frameworks that mount it look at its lifespan and its routes, before there are any.
        super().__init__(routes=[Mount("", self._serve)], lifespan=_run)
        chosen = settings_of(settings)
        self.settings = chosen.model_copy(update={"api_docs": bool(chosen.api_docs)})
        self._no_auth, self._engine_command = no_auth, engine_command
        self._running: _Running | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the host's lifespan. Raise `ServerUnavailable` before the start."""
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve within the block, which begins once the model is loaded.

        Raise `InvalidParams` if everyone could use the server and `no_auth` was not given, or for a setting
        that cannot be had, and `ServerUnavailable` if the model cannot be served; the log has the reason.
        """
        with redacted_logs(), _own_folder(self.settings) as own:
            settings = own.with_adapter_store()
            async with inner_worker(settings, self._engine_command) as worker, self._plane(settings) as plane:
                app = Interruptible(plane.app)
                try:
                    await worker.join(plane, app)
                    self._running = _Running(plane, app, worker.task)
                    yield
                finally:
                    self._running = None
                    await worker.stop()  # before the control plane, to which it releases its jobs

    async def workers_needed(self) -> float:
        """Return how many workers the accepted work needs, not rounded. Raise `ServerUnavailable`.

        The numbers of applications with a database each add up; those that share one have the same.
        """
        services: Services = self._parts.plane.app.state.services
        return await services.pool_sizes.worth()

    def check_health(self) -> None:
        """Raise `ServerUnavailable` before the start, after the end, and once no worker can start."""
        if self._parts.worker.done():
            raise ServerUnavailable("the worker has ended, and no other can start; see the log")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._parts.app(scope, receive, send)

    @property
    def _parts(self) -> _Running:
        if self._running is None:
            remedy = "have the host send the lifespan's events, or use `async with app.running()`"
            raise ServerUnavailable(f"the application has not started; {remedy}")
        return self._running

    @asynccontextmanager
    async def _plane(self, settings: Settings) -> AsyncIterator[ControlPlane]:
        """Yield a control plane that is not open by mistake."""
        if settings.api_key is not None and _is_temporary(self.settings):
            await _adopt_key(settings, settings.api_key)
        async with control_plane(settings, self._no_auth) as plane:
            if not plane.has_auth:
                self._check_open(plane)
            await warn_of_shared_name(plane.store)
            async with plane.app.router.lifespan_context(plane.app):
                yield plane

    def _check_open(self, plane: ControlPlane) -> None:
        if not self._no_auth:
            remedy = (
                "everyone who reaches the host could use this server; give a key that "
                "`diffuserve keys create` has made, or no_auth=True"
            )
            raise InvalidParams("api_key", None, remedy)
        check_origins(plane)
        warn_of_open_server("its host", self._no_auth)


@asynccontextmanager
async def _run(app: ServerApp) -> AsyncIterator[None]:
    async with app.running():
        yield


def _is_temporary(settings: Settings) -> bool:
    return settings.database_url is None and "data_dir" not in settings.model_fields_set


@contextmanager
def _own_folder(settings: Settings) -> Iterator[Settings]:
    """Yield settings with the server's data folder: its own, or noted among those on one database.

    `diffuserve stop` finds it by that. Raise `InvalidParams` if another server has it for itself.
    """
    if _is_temporary(settings):
        with tempfile.TemporaryDirectory(prefix="diffuserve-", ignore_cleanup_errors=True) as folder:
            yield settings.model_copy(update={"data_dir": Path(folder)})
    else:
        hold = locked if settings.database_url is None else shared
        with hold(settings.data_dir, settings.data_access):
            yield settings


async def _adopt_key(settings: Settings, key: str) -> None:
    async with open_store(settings) as store:
        try:
            await store.keys.adopt(key)
        except Unauthorized as error:
            raise InvalidParams("api_key", "…", f"{error}; `diffuserve keys create` makes one") from error
