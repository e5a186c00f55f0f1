"""What routes work with."""

import asyncio
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from diffuserve.api.auth.access import Gate
from diffuserve.api.background import Background
from diffuserve.api.catalog import Catalog
from diffuserve.api.config import ApiConfig
from diffuserve.api.files.signing import Signer
from diffuserve.api.files.urls import FileUrls
from diffuserve.api.job_times import JobTimes
from diffuserve.api.job_watcher import Follower
from diffuserve.api.prompt_processor import PromptProcessor
from diffuserve.api.serializers import Documents
from diffuserve.api.webhooks.guarded_http import Guard
from diffuserve.events.base import EventBus
from diffuserve.jobs.store import JobStore
from diffuserve.quotas.base import Quotas
from diffuserve.quotas.local import LocalQuotas
from diffuserve.storage.base import ArtifactStore
from diffuserve.telemetry.metrics import ControlMetrics

_BATCHES_AT_ONCE = 2  # that are taken in: each may be tens of megabytes


@dataclass(frozen=True)
class Services:
    """One of each for an app."""

    config: ApiConfig
    store: JobStore
    artifacts: ArtifactStore
    bus: EventBus
    quotas: Quotas
    metrics: ControlMetrics
    gate: Gate
    catalog: Catalog
    follower: Follower
    signer: Signer
    files: FileUrls
    documents: Documents
    times: JobTimes
    guard: Guard
    prompts: PromptProcessor
    batch_slots: asyncio.Semaphore
    background: Background

    @classmethod
    def around(
        cls,
        store: JobStore,
        artifacts: ArtifactStore,
        bus: EventBus,
        config: ApiConfig,
        quotas: Quotas | None = None,
        prompts: PromptProcessor | None = None,
    ) -> "Services":
        metrics = ControlMetrics()
        store.on_ended(metrics.count_final_job)
        signer = Signer(store, config.result_url_seconds)
        files = FileUrls(artifacts, signer, config.public_base_url)
        return cls(
            config=config,
            store=store,
            artifacts=artifacts,
            bus=bus,
            quotas=quotas or LocalQuotas(),
            metrics=metrics,
            gate=Gate(store, is_open=not config.auth),
            catalog=Catalog(store, config.default_model),
            follower=Follower(store, bus, config.look_seconds),
            signer=signer,
            files=files,
            documents=Documents(store, bus, files),
            times=JobTimes(store, metrics),
            guard=Guard(config.webhook_allowed_networks),
            prompts=replace(prompts or PromptProcessor(), on_verdict=metrics.observe_prompt_verdict),
            batch_slots=asyncio.Semaphore(_BATCHES_AT_ONCE),
            background=Background(),
        )


def services_of(connection: HTTPConnection) -> Services:
    services = connection.app.state.services
    assert isinstance(services, Services)
    return services


async def _services(connection: HTTPConnection) -> Services:
    return services_of(connection)


ServicesOf = Annotated[Services, Depends(_services)]
