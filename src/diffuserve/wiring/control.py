"""Assembly of the control plane; beside `safety.py` the only place that names a backend."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from diffuserve.domain.errors import InvalidParams, ModelConflict, ServerUnavailable, StorageRefused
from diffuserve.domain.workers.worker import ModelOffer
from diffuserve.events.base import EventBus
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.jobs.tasks.preemptor import Preemptor
from diffuserve.jobs.tasks.reaper import Reaper
from diffuserve.modelstore.adapters.stored_adapters import StoredAdapters
from diffuserve.private_files import make_private_file, make_private_folder
from diffuserve.quotas.base import Quotas
from diffuserve.quotas.local import LocalQuotas
from diffuserve.settings import Settings
from diffuserve.storage.base import ArtifactStore
from diffuserve.storage.opening import open_artifacts
from diffuserve.storage.probe import probe
from diffuserve.telemetry.tracer_choice import open_tracer
from diffuserve.telemetry.tracing import Tracer
from diffuserve.wiring.database_errors import cannot_open
from diffuserve.wiring.safety import open_intake, open_prompts

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from fastapi import FastAPI

    from diffuserve.api.auth.access import Authenticator
    from diffuserve.api.services import Services


@dataclass(frozen=True)
class ControlPlane:
    """A control plane at work. Without `has_auth` every request is allowed until a first key is made."""

    app: "FastAPI"
    store: JobStore
    authenticator: "Authenticator"
    has_auth: bool

    async def expect(self, offer: ModelOffer) -> None:
        """Accept jobs for a model that a worker of this server is loading."""
        services: Services = self.app.state.services
        services.catalog.prefer(offer.spec.name)
        try:
            await self.store.operations.expect(offer)
        except ModelConflict as error:  # jobs are for the other form of the model until the worker can join
            log.warning("%s", error)


@asynccontextmanager
async def open_storage(settings: Settings) -> AsyncIterator[ArtifactStore]:
    """Yield the artifact store of the settings, after a test with a tiny file.

    Raise `InvalidParams` if the store refuses it. The server starts even if the store does not respond, as it
    may come back; `StorageWatch` reports when it does.
    """
    if settings.artifacts_url is None:
        make_private_folder(settings.data_dir, settings.data_access)
    artifacts = open_artifacts(settings.files_url, settings.data_access)
    try:
        await probe(artifacts)
    except StorageRefused as error:
        raise InvalidParams("artifacts_url", settings.files_url, str(error)) from error
    except ServerUnavailable:
        pass
    yield artifacts


@asynccontextmanager
async def open_bus(settings: Settings) -> AsyncIterator[EventBus]:
    """Yield the event bus of the settings. Valkey may be unavailable, now or later."""
    if (url := settings.bus_url) is None:
        yield MemoryEventBus()
        return
    from diffuserve.events.valkey import ValkeyEventBus  # a single control plane starts faster without it

    async with ValkeyEventBus(url) as bus:
        yield bus


@asynccontextmanager
async def open_quotas(settings: Settings) -> AsyncIterator[Quotas]:
    """Yield the quotas of the settings. Valkey may be unavailable, now or later."""
    if (url := settings.bus_url) is None:
        yield LocalQuotas()
        return
    from diffuserve.quotas.valkey import ValkeyQuotas

    async with ValkeyQuotas(url) as quotas:
        yield quotas


@asynccontextmanager
async def open_store(settings: Settings, bus: EventBus | None = None) -> AsyncIterator[JobStore]:
    """Yield the open job store, with its schema up to date.

    Without a `bus` its changes are not announced; they are found by polling. Raise `ServerUnavailable` if
    the database cannot be opened, and `InvalidParams` if others can read it.
    """
    store = JobStore(settings.store_url, bus or MemoryEventBus(), settings.store_config)
    try:
        _keep_database_private(settings)
        await store.open()
    except (OSError, ServerUnavailable, SQLAlchemyError) as error:
        await store.database.close()
        raise cannot_open(settings.store_url, error) from error
    try:
        yield store
    finally:
        await store.close()


def _keep_database_private(settings: Settings) -> None:
    """Create SQLite's file, and the data folder where the file is in it, for nobody else to read."""
    if settings.database_url is None:
        make_private_folder(settings.data_dir, settings.data_access)
    if (file := settings.database_file) is not None:
        make_private_file(file, settings.data_access)


@asynccontextmanager
async def open_tracing(settings: Settings) -> AsyncIterator[Tracer]:
    """Yield the tracer of the settings. Raise `InvalidParams` if it cannot be had."""
    tracer = open_tracer(settings.worker.tracing, "diffuserve-api")
    try:
        yield tracer
    finally:
        await tracer.close()


def adapters_of(settings: Settings) -> StoredAdapters | None:
    """Return the store of adapters of the settings; `None` without one."""
    url = settings.engine_process.stored.adapters_url
    return None if url is None else StoredAdapters(url)


@asynccontextmanager
async def control_plane(settings: Settings, no_auth: bool = False) -> AsyncIterator[ControlPlane]:
    """Yield the application with an open store and running background tasks; the caller listens."""
    # Commands that only need the store start faster without these.
    from diffuserve.api.app import create_app
    from diffuserve.api.openai.batch_runner import FileBatchRunner
    from diffuserve.api.openai.batch_work import BatchWorkParts

    async with (
        open_storage(settings) as artifacts,
        open_bus(settings) as bus,
        open_quotas(settings) as quotas,
        open_prompts(settings) as prompts,
        open_intake(settings) as images,
        open_store(settings, bus) as store,
        open_tracing(settings) as tracer,
    ):
        config = settings.api_config(auth=not no_auth)
        adapters = adapters_of(settings)
        app = create_app(store, artifacts, bus, config, quotas, prompts, images, tracer, adapters)
        services: Services = app.state.services
        reaper, preemptor = Reaper(store.housekeeping, artifacts), Preemptor(store.housekeeping, bus)
        async with (
            running(reaper.run()),
            running(preemptor.run()),
            running(services.storage.run()),
            running(services.job_log.run()),
            running(FileBatchRunner(services.part(BatchWorkParts)).run()),
            sending(services),
        ):
            has_auth = not await services.authenticator.is_open()
            yield ControlPlane(app, store, services.authenticator, has_auth)


@asynccontextmanager
async def sending(services: "Services") -> AsyncIterator[None]:
    """Send webhooks within the block."""
    from diffuserve.api.outbound.guarded_http import GuardedHttpClient
    from diffuserve.api.webhooks.sender import SenderParts, WebhookSender

    http = GuardedHttpClient(services.address_policy)
    async with running(WebhookSender(services.part(SenderParts), http).run()):
        yield
    await http.close()


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` within the block; cancel it afterwards."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
