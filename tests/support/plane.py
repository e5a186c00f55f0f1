"""A control plane on SQLite for real agents, in the process of the test."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import uvicorn

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.domain.jobs.job import Job, JobStatus, NewJob
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import schema
from diffuserve.jobs.store import JobStore
from diffuserve.storage.bucket import BucketArtifactStore
from diffuserve.storage.local import LocalArtifactStore
from diffuserve.telemetry.tracing import OFF, Tracer
from support.ports import free_port
from support.waiting import eventually

LEASE_SECONDS = 3_600.0  # no lease runs out while the machine stalls; `Plane.expire` ends one
NULL_ENGINE = (sys.executable, "-m", "diffuserve.testing.null_engine")


class Plane:
    """A control plane on a port of its own, which can go away and come back."""

    def __init__(
        self, folder: Path, artifacts: LocalArtifactStore | BucketArtifactStore, tracer: Tracer = OFF
    ) -> None:
        self.bus = MemoryEventBus()
        self.folder = folder
        self.artifacts = artifacts
        self.tracer = tracer
        config = StoreConfig(lease_seconds=LEASE_SECONDS, heartbeat_seconds=1.0, default_plan="pro")
        self.store = JobStore(f"sqlite:///{folder}/jobs.db", self.bus, config)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        config = ApiConfig(auth=False, poll_seconds=0.2)
        self.app = app = create_app(self.store, self.artifacts, self.bus, config, tracer=self.tracer)
        listen = uvicorn.Config(app, port=self.port, log_config=None, timeout_graceful_shutdown=0)
        self.server = uvicorn.Server(listen)
        self.serving = asyncio.create_task(self.server.serve())
        self.watching = asyncio.create_task(app.state.services.storage.run())
        while not self.server.started:
            await asyncio.sleep(0.01)

    async def vanish(self) -> None:
        self.watching.cancel()
        self.server.should_exit = True
        await self.serving

    async def submit(self, prompt: str = "a star", model: str = "null", **values: Any) -> Job:
        values.setdefault("input", {"prompt": prompt, "seed": 1})
        return await self.store.jobs.submit(NewJob(tenant_id="ada", model=model, cost_seconds=0.1, **values))

    async def expire(self, job: Job) -> None:
        """Let the job's present lease run out, also if a heartbeat renews it before that is seen."""
        token = (await self.store.jobs.get(job.id)).lease_token
        while await self._change_lease(job, token, expires_at=0.0):
            await asyncio.sleep(0.05)

    async def run_over_time(self, job: Job) -> None:
        """Let the job reach its timeout."""
        token = (await self.store.jobs.get(job.id)).lease_token
        await self._change_lease(job, token, stop_at=0.0)

    async def status(self, job: Job) -> JobStatus:
        return (await self.store.jobs.get(job.id)).status

    async def _change_lease(self, job: Job, token: int, **values: float) -> bool:
        """Change the job's lease with this token; return whether there is one."""
        leases = schema.leases
        is_it = sa.and_(leases.c.job_id == job.id, leases.c.lease_token == token)
        change = sa.update(leases).where(is_it).values(**values)
        return bool(await self.store.database.write(lambda transaction: transaction.execute(change).rowcount))


async def until(plane: Plane, job: Job, status: JobStatus) -> Job:
    """Return the job once it has this status."""

    async def is_reached() -> bool:
        return await plane.status(job) is status

    await eventually(is_reached)
    return await plane.store.jobs.get(job.id)
