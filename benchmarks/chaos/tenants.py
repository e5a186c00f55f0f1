"""Tenants of the chaos run, their keys, and their attempts to reach one another's jobs."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from diffuserve.domain.tenant import Role
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.sdk.async_client import AsyncClient

_NAMES = ("ada", "bob", "cleo")
NUM_TENANTS = len(_NAMES)
_KINDS = (
    ("GET", "/v1/jobs/{}"),
    ("GET", "/v1/jobs/{}?wait=1"),
    ("GET", "/v1/jobs/{}/events"),
    ("GET", "/v1/jobs/{}/result"),
    ("POST", "/v1/jobs/{}/cancel"),
    ("DELETE", "/v1/jobs/{}"),
    ("GET", "/jobs/{}"),
    ("DELETE", "/jobs/{}"),
)
_TIMEOUT_SECONDS = 15.0
_PATIENCE_SECONDS = 120.0
_PAGE = 200


@dataclass(frozen=True)
class TenantKey:
    """A tenant and its API key."""

    name: str
    key: str


@dataclass(frozen=True)
class Keys:
    """The keys of a run."""

    tenants: Sequence[TenantKey]
    worker: str
    monitor: str


async def issue_keys(store_url: str) -> Keys:
    """Store new keys in the database, which no server uses yet."""
    store = JobStore(store_url, MemoryEventBus(), StoreConfig())
    await store.open()
    tenants = [TenantKey(name, (await store.keys.create(Role.TENANT, tenant_id=name))[1]) for name in _NAMES]
    _, worker = await store.keys.create(Role.WORKER)
    _, monitor = await store.keys.create(Role.MONITOR)
    await store.close()
    return Keys(tenants, worker, monitor)


@dataclass
class Crossings:
    """Requests of tenants for jobs of others.

    `refused`: responses 404. `unanswered`: no response, or one that says *later*. `crossed`: any other
    response, and foreign jobs in a tenant's list; it must be 0.
    """

    asked: int = 0
    refused: int = 0
    unanswered: int = 0
    crossed: int = 0
    listed: int = 0


class Trespassers:
    """Ask for jobs of other tenants, in turn by each route that names a job."""

    def __init__(self, server: str, tenants: Sequence[TenantKey]) -> None:
        self.crossings = Crossings()
        self._http = httpx.AsyncClient(base_url=server, timeout=_TIMEOUT_SECONDS, trust_env=False)
        self._server, self._tenants = server, tenants
        self._kinds = itertools.cycle(_KINDS)

    async def close(self) -> None:
        await self._http.aclose()

    async def ask_for(self, job_id: str, owner: str) -> None:
        """Ask for the job with the key of each other tenant."""
        for stranger in self._tenants:
            if stranger.name != owner:
                await self._ask_as(stranger, job_id)

    async def _ask_as(self, stranger: TenantKey, job_id: str) -> None:
        method, path = next(self._kinds)
        headers = {"authorization": f"Bearer {stranger.key}"}
        self.crossings.asked += 1
        try:
            async with self._http.stream(method, path.format(job_id), headers=headers) as response:
                self._count(response.status_code)
        except httpx.TransportError:
            self.crossings.unanswered += 1

    def _count(self, status: int) -> None:
        if status == 404:
            self.crossings.refused += 1
        elif status == 429 or status >= 500:
            self.crossings.unanswered += 1
        else:
            self.crossings.crossed += 1

    async def read_lists(self, owners: Mapping[str, str]) -> None:
        """Read every tenant's whole list of jobs, which must be its own."""
        for tenant in self._tenants:
            listed = await self._listed(tenant)
            self.crossings.listed += len(listed)
            self.crossings.crossed += sum(owners.get(job_id) != tenant.name for job_id in listed)

    async def _listed(self, tenant: TenantKey) -> list[str]:
        listed: list[str] = []
        async with AsyncClient(self._server, tenant.key, patience_seconds=_PATIENCE_SECONDS) as client:
            after = None
            while True:
                page = await client.list_jobs(after=after, limit=_PAGE)
                listed += [job.id for job in page.data]
                if not page.has_more:
                    return listed
                after = page.next
