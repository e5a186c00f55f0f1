"""The store as operators and the control plane see it: workers, models, lanes and tenants."""

import asyncio
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.codec import from_json
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.jobs.job import Band, Job
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.models.tiers import NO_TIERS, Tiers, within_tiers
from diffuserve.domain.tenant import Plan, Tenant
from diffuserve.domain.workers.worker import ModelOffer, Worker
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import queries, schema
from diffuserve.jobs.database.connections import Database
from diffuserve.jobs.database.outages import is_unavailable
from diffuserve.jobs.database.writer import Writer
from diffuserve.jobs.policy.estimate import LaneSize, TenantStanding
from diffuserve.jobs.policy.pricing import NEUTRAL_FIT
from diffuserve.jobs.queue.control import RequeueJob
from diffuserve.jobs.queue.ready_queue import tenant_of
from diffuserve.jobs.workers.offers import OfferModel
from diffuserve.jobs.workers.registry import worker_of

lanes, leases = schema.lanes, schema.leases


@dataclass(frozen=True)
class OfferedModel:
    """A model that a worker has offered; `fit` is the family's default before the first measurement.

    Requests have values of its `tiers`, if there are any, and its defaults are among them.
    """

    spec: ModelSpec
    fit: CostFit
    tiers: Tiers = NO_TIERS

    def within(self, tiers: Tiers) -> "OfferedModel":
        """Return the model with these tiers."""
        return replace(self, spec=within_tiers(self.spec, tiers), tiers=tiers)


class Operations:
    """The store as operators use it. Every method may raise `ServerUnavailable`."""

    def __init__(self, database: Database, writer: Writer, config: StoreConfig) -> None:
        self._database = database
        self._writer = writer
        self._config = config
        self.expected: frozenset[str] = frozenset()

    async def check_writer(self) -> None:
        """Raise `ServerUnavailable` unless this process's writes are committed now."""
        await self._writer.check()

    async def responds(self, seconds: float) -> bool:
        """Return whether the database responds within so many seconds; nothing is tried again."""
        return await _succeeds(self._database.look(lambda _connection: None), seconds)

    async def takes_writes(self, seconds: float) -> bool:
        """Return whether this process's writes are committed, as far as so many seconds tell."""
        return await _succeeds(self._writer.check(), seconds)

    async def workers(self) -> list[Worker]:
        """Return all known workers, in the order of their registration."""
        return (await self.workers_at())[1]

    async def workers_at(self) -> tuple[float, list[Worker]]:
        """Return the store's time and all known workers; who is not among them was not stored by then."""
        now = await self._database.now()
        table = schema.workers
        held = sa.select(sa.func.count()).where(leases.c.worker_id == table.c.id).scalar_subquery()
        rows = await self._database.rows(
            sa.select(table, held.label("num_leases")).order_by(table.c.registered_at)
        )
        lease_seconds = self._config.lease_seconds
        return now, [worker_of(row, now, lease_seconds, row.num_leases) for row in rows]

    async def models(self) -> Mapping[str, OfferedModel]:
        """Return models by name, also those whose workers are gone."""
        rows = await self._database.rows(sa.select(schema.models).order_by(schema.models.c.name))
        return {row.name: _served(row) for row in rows}

    async def expect(self, offer: ModelOffer) -> None:
        """Accept jobs for a model whose worker was started and has not registered. Raise `ModelConflict`."""
        self.expected |= {offer.spec.name}
        await self._writer.run(OfferModel(offer))

    async def lanes(self) -> list[LaneSize]:
        """Return the lanes that have ready jobs."""
        return list((await self.lanes_by_key()).values())

    async def lanes_by_key(self) -> dict[str, LaneSize]:
        """Return the lanes that have ready jobs, by their keys."""
        return {
            row.lane: LaneSize(
                Band(row.band), row.tenant_id, row.model, row.num_ready, row.work_seconds, row.is_decode
            )
            for row in await self._database.rows(sa.select(lanes).where(lanes.c.num_ready > 0))
        }

    async def tenant(self, tenant_id: str) -> Tenant:
        """Return the tenant; an unknown one has the default plan."""
        known = await self.tenants({tenant_id})
        return known[0] if known else Tenant(tenant_id, self._default_plan)

    async def standings(self, tenant_ids: Collection[str]) -> dict[str, TenantStanding]:
        """Return how the tenants stand under fair queueing; an unknown one has the default plan's weight."""
        table = schema.tenants
        rows = await self._database.rows(sa.select(table).where(table.c.id.in_(sorted(tenant_ids))))
        known = {row.id: _standing(tenant_of(row, self._config).plan, row.vtime) for row in rows}
        return dict.fromkeys(tenant_ids, _standing(self._default_plan)) | known

    @property
    def _default_plan(self) -> Plan:
        return self._config.plan(self._config.default_plan)

    async def tenants(self, tenant_ids: Collection[str]) -> list[Tenant]:
        """Return those of the tenants that are known."""
        table = schema.tenants
        rows = await self._database.rows(sa.select(table).where(table.c.id.in_(sorted(tenant_ids))))
        return [tenant_of(row, self._config) for row in rows]

    async def requeue(self, job_id: str) -> Job:
        """Queue a failed, expired or canceled job again, with fresh attempts.

        Raise `JobNotFound`, or `Conflict` for a job in another state.
        """
        await self._writer.run(RequeueJob(queries.check_job_id(job_id)))
        return await queries.read_job(self._database, job_id)


async def _succeeds(work: Awaitable[object], seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await work
    except Exception as error:
        if not isinstance(error, ServerUnavailable) and not is_unavailable(error):
            raise
        return False
    return True


def _standing(plan: Plan, vtime: float = 0.0) -> TenantStanding:
    return TenantStanding(plan.weight, vtime, plan.max_running)


def _served(row: sa.Row[Any]) -> OfferedModel:
    spec = from_json(ModelSpec, row.spec)
    fit = from_json(CostFit, row.fit) if row.fit else NEUTRAL_FIT
    return OfferedModel(spec, fit)
