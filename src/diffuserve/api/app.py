"""The REST API: routes over a job store, an artifact store and an event bus."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache

from fastapi import FastAPI
from starlette.routing import BaseRoute

from diffuserve.api.a1111 import door as a1111
from diffuserve.api.auth.browser_guard import BrowserGuard
from diffuserve.api.batches import file_batch_routes
from diffuserve.api.batches import routes as batches
from diffuserve.api.clients import adapters as adapter_routes
from diffuserve.api.clients import (
    archive,
    estimates,
    events,
    files,
    jobs,
    live,
    models,
    plan,
    results,
    simple,
    usage,
)
from diffuserve.api.comfyui import door as comfyui
from diffuserve.api.config import ApiConfig, DoorName
from diffuserve.api.door.cors import allow_origins
from diffuserve.api.door.middleware import RequestMiddleware
from diffuserve.api.fal import door as fal
from diffuserve.api.http.openapi import TAGS, DocumentedApi, operation_id
from diffuserve.api.http.other_doors import OtherDoor
from diffuserve.api.http.problems import PROBLEM_RESPONSES, add_problem_handlers
from diffuserve.api.openai import image_routes as openai
from diffuserve.api.openai import video_routes as openai_videos
from diffuserve.api.operators import operations, overview, scale
from diffuserve.api.pages import home, session
from diffuserve.api.pages.documents import add_documents
from diffuserve.api.reads.adapter_names import Adapters
from diffuserve.api.services import Services
from diffuserve.api.submit.prompt_processor import PromptProcessor
from diffuserve.api.webhooks import routes as webhooks
from diffuserve.api.workers import checkpoints, leases, model_orders, workers
from diffuserve.events.base import EventBus
from diffuserve.jobs.store import JobStore
from diffuserve.quotas.base import Quotas
from diffuserve.safety.processes.intake_pool import IntakePool
from diffuserve.storage.base import ArtifactStore
from diffuserve.telemetry.tracing import OFF, Tracer
from diffuserve.web.pages import add_pages

_DESCRIPTION = """Generate images as durable jobs.

Submit to `/v1/jobs`, then follow the `urls` of the response. `/v1/images`, `/v1/videos`, `/v1/files` and
`/v1/models` follow OpenAI's API, `/generate` is a flat API for scripts. Errors are problems after RFC 9457.
"""
ROUTES = (
    leases,  # by workers, which send more requests than others: routes are tried in this order
    workers,
    model_orders,
    archive,  # before a job of that name
    estimates,
    jobs,
    file_batch_routes,  # before a batch of such an id
    batches,
    events,
    results,
    live,
    files,
    adapter_routes,
    webhooks,
    models,
    plan,
    usage,
    openai,
    openai_videos,
    simple,
    session,
    home,
    operations,
    overview,
    scale,
    checkpoints,
)
DOORS: Mapping[DoorName, OtherDoor] = {
    DoorName.A1111: a1111.DOOR,
    DoorName.COMFYUI: comfyui.DOOR,
    DoorName.FAL: fal.DOOR,
}
"""What operators may open beside them, each for programs that were written for another server."""


def create_app(  # noqa: PLR0913 (what an application is made of)
    store: JobStore,
    artifacts: ArtifactStore,
    bus: EventBus,
    config: ApiConfig,
    quotas: Quotas | None = None,
    prompts: PromptProcessor | None = None,
    images: IntakePool | None = None,
    tracer: Tracer = OFF,
    adapters: Adapters | None = None,
) -> FastAPI:
    """Build the application. The caller opens and closes what it passes in.

    Without `quotas` this process counts requests by itself; without `prompts` every prompt is accepted
    unchanged, without `images` every image is accepted that can be read, without `tracer` no span is
    recorded, and without `adapters` their names are left to workers.
    """
    services = Services.build(store, artifacts, bus, config, quotas, prompts, images, tracer, adapters)
    app = DocumentedApi(
        title="diffuserve",
        version=config.version,
        description=_DESCRIPTION,
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        responses=PROBLEM_RESPONSES,
        openapi_url="/openapi.json" if config.api_docs else None,
        docs_url=None,  # FastAPI's own pages load scripts from a CDN
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.services = services
    app.state.doors = doors = tuple(door for name, door in DOORS.items() if name in config.open_doors)
    app.add_middleware(BrowserGuard, authenticator=services.authenticator, own=services.own_addresses)
    allow_origins(app, config.allowed_origins)
    app.add_middleware(
        RequestMiddleware,
        metrics=services.metrics,
        max_body_bytes=config.max_body_bytes,
        unbounded_paths=frozenset(
            {batches.router.prefix, files.router.prefix, *openai.UPLOADS, *openai_videos.UPLOADS}
        ).union(*(door.uploads for door in doors)),
        tracer=tracer,
    )
    add_problem_handlers(app)
    app.router.routes.extend(_routes(config.open_doors))
    add_pages(app, services.pages)
    if config.api_docs:
        add_documents(app)
    return app


@cache
def _routes(doors: frozenset[DoorName]) -> list[BaseRoute]:
    """Return the routes, which applications of a process share: building their schemas takes long."""
    whole = FastAPI(responses=PROBLEM_RESPONSES, openapi_url=None, generate_unique_id_function=operation_id)
    for router in [routes.router for routes in ROUTES] + [DOORS[name].router for name in sorted(doors)]:
        whole.include_router(router)
    return list(whole.router.routes)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    watching = asyncio.create_task(services.revocations.run())
    recording = asyncio.create_task(services.history_recorder.run())
    with services.chosen_models.listening():
        yield
    watching.cancel()
    recording.cancel()
    await services.background_tasks.finish()
    await services.image_fetcher.close()
