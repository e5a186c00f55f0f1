"""Clients of the chaos run, which submit jobs and wait for their end or follow their events."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import httpx

from benchmarks.chaos.tenants import TenantKey, Trespassers
from benchmarks.chaos.webhooks import webhook_url
from benchmarks.chaos.workers import SEVERAL_MODELS
from diffuserve.domain.errors import ModelNotFound
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.resources.job import JobResource
from diffuserve.sdk.async_client import AsyncClient

_OUTSTANDING = 22  # jobs that waiting clients have under way at a time
_NUM_FOLLOWERS = 2
_NULL = ("null",)
_UNOFFERED_SECONDS = 1.0
_LONGEST_SECONDS = 300.0  # from submit to the end of a job
_PATIENCE_SECONDS = 300.0


@dataclass
class Followed:
    """Jobs followed by server-sent events.

    `gaps`: streams whose numbers are not 1, 2, 3 …, or that never end. `resumed`: streams that broke and
    were continued after their last event.
    """

    jobs: int = 0
    resumed: int = 0
    gaps: int = 0


class Clients:
    """Clients of several tenants that submit a job, wait for its end, and submit the next.

    `told` has the statuses by job, and `owners` the tenants.
    """

    def __init__(
        self, server: str, num_jobs: int, tenants: Sequence[TenantKey], receiver_url: str, deadline: float
    ) -> None:
        self.told: dict[str, JobStatus | None] = {}
        self.owners: dict[str, str] = {}
        self.followed = Followed()
        self.trespassers = Trespassers(server, tenants)
        self._server, self._num_jobs, self._deadline = server, num_jobs, deadline
        self._receiver_url = receiver_url
        self._tenants = tenants
        self._number = 0

    async def run(self, until: asyncio.Task[None]) -> None:
        """Run while faults are injected, and for at least the number of jobs."""
        tenants = itertools.cycle(self._tenants)
        async with asyncio.TaskGroup() as group:
            for _ in range(_OUTSTANDING):
                group.create_task(self._wait_for_jobs(next(tenants), until))
            for _ in SEVERAL_MODELS:
                group.create_task(self._wait_for_jobs(next(tenants), until, SEVERAL_MODELS))
            for _ in range(_NUM_FOLLOWERS):
                group.create_task(self._follow_jobs(next(tenants), until))

    async def seconds_to_submit(self, server: str) -> float:
        """Submit a job to this server; return the seconds until it is accepted."""
        tenant, started = self._tenants[0], time.monotonic()
        async with AsyncClient(server, tenant.key, patience_seconds=_PATIENCE_SECONDS) as client:
            await self._submit(client, tenant)
        return time.monotonic() - started

    async def _wait_for_jobs(
        self, tenant: TenantKey, until: asyncio.Task[None], models: Sequence[str] = _NULL
    ) -> None:
        in_turn = itertools.cycle(models)
        async with AsyncClient(self._server, tenant.key, patience_seconds=_PATIENCE_SECONDS) as client:
            while self._goes_on(until):
                job = await self._submit(client, tenant, next(in_turn))
                with suppress(TimeoutError):  # the audit says what became of it
                    self.told[job.id] = (await client.wait(job.id, max_seconds=_LONGEST_SECONDS)).status
                await self.trespassers.ask_for(job.id, tenant.name)

    async def _follow_jobs(self, tenant: TenantKey, until: asyncio.Task[None]) -> None:
        counted = _CountingTransport()
        patience = _PATIENCE_SECONDS
        async with AsyncClient(
            self._server, tenant.key, patience_seconds=patience, transport=counted
        ) as client:
            while self._goes_on(until):
                job = await self._submit(client, tenant)
                await self.trespassers.ask_for(job.id, tenant.name)
                await self._follow(client, job)
        self.followed.resumed += counted.num_resumed

    async def _follow(self, client: AsyncClient, job: JobResource) -> None:
        seqs: list[int] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_SECONDS):
                async for event in client.stream(job.id):
                    seqs += [event.seq] if event.seq is not None else []
                    self.told[job.id] = JobStatus(event.type) if event.is_final else None
        self.followed.jobs += 1
        is_whole = self.told[job.id] is not None and seqs == list(range(1, len(seqs) + 1))
        self.followed.gaps += not is_whole

    def _goes_on(self, until: asyncio.Task[None]) -> bool:
        return time.monotonic() < self._deadline and (not until.done() or self._number < self._num_jobs)

    async def _submit(self, client: AsyncClient, tenant: TenantKey, model: str = "null") -> JobResource:
        self._number += 1
        params = GenerationParams(prompt=f"job {self._number}")
        webhook = {"url": webhook_url(self._receiver_url, tenant)}
        while True:
            try:
                job = await client.submit(params, model=model, webhook=webhook)
                break
            except ModelNotFound:  # no worker has offered it yet
                await asyncio.sleep(_UNOFFERED_SECONDS)
        self.told[job.id], self.owners[job.id] = None, tenant.name
        return job


class _CountingTransport(httpx.AsyncHTTPTransport):
    """Counts the streams that continue after an event."""

    def __init__(self) -> None:
        super().__init__()
        self.num_resumed = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        self.num_resumed += response.is_success and request.headers.get("last-event-id", "0") != "0"
        return response
