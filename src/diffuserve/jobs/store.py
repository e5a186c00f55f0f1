"""The job store: every accepted job, and who may run it."""

import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.cost import CostFit
from diffuserve.domain.errors import JobNotFound, LeaseLost, WorkerNotFound
from diffuserve.domain.job import Band, Job, JobEvent, JobStatus, NewJob, QueueEstimate
from diffuserve.domain.model_spec import ModelSpec
from diffuserve.domain.tenant import ApiKey, PlanOverrides, Role, Tenant
from diffuserve.domain.worker import (
    Claim,
    Completion,
    ControlCommands,
    Failure,
    Heartbeat,
    Lease,
    Registration,
    Release,
    Worker,
)
from diffuserve.events.base import EventBus
from diffuserve.jobs import claim as claims
from diffuserve.jobs import control, finish, keys, queries, queue, reaper, schema, submit, workers
from diffuserve.jobs.admission import Submission
from diffuserve.jobs.audit import AuditStore
from diffuserve.jobs.batches.store import BatchStore
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import Clock, Database
from diffuserve.jobs.due import AT_ONCE
from diffuserve.jobs.estimate import Before, LaneSize, estimate_wait
from diffuserve.jobs.migrate import migrate
from diffuserve.jobs.pricing import default_fit
from diffuserve.jobs.records import event_of, job_of
from diffuserve.jobs.webhooks.store import WebhookStore
from diffuserve.jobs.writer import Writer

_JOB_ID = re.compile(r"job_[0-9a-f]{1,40}")
jobs, leases, ready, lanes = schema.jobs, schema.leases, schema.ready, schema.lanes


@dataclass(frozen=True)
class ServedModel:
    """A model that some worker has offered; `fit` is the family's default until one is measured."""

    spec: ModelSpec
    fit: CostFit


class JobStore:
    """`tenant_id=None` means "whoever's": for operators and for the control plane itself.

    Every method raises `ServerUnavailable` when the database stays away.
    """

    def __init__(self, url: str, bus: EventBus, config: StoreConfig, clock: Clock | None = None) -> None:
        """`url` is `sqlite:///PATH` or `postgresql://…`, as SQLAlchemy writes them.

        Without a `clock` the database's own is used.
        """
        self.config = config
        self.database = Database(url, config, clock)
        self._writer = Writer(self.database, bus)
        self.webhooks = WebhookStore(self.database, self._writer)
        self.batches = BatchStore(self.database, self._writer)
        self.audit = AuditStore(self.database, self._writer)

    def on_ended(self, listener: Callable[[JobStatus, str], None]) -> None:
        """Tell `listener` the status and model of every job that becomes final through this process."""
        self._writer.on_ended = lambda ended: listener(*ended)

    async def open(self) -> None:
        """Bring the schema up to date, and begin to write."""
        await migrate(self.database)
        self._writer.start()

    async def close(self) -> None:
        await self._writer.close()
        await self.database.close()

    # What clients do

    async def submit(self, new: NewJob) -> Job:
        """The same idempotency key and body give the same job.

        Raises `QueueFull`, `BacklogFull`, `IdempotencyMismatch`.
        """
        return await self._writer.run(submit.submit, Submission(_new_job_id(), new))

    async def get(self, job_id: str, tenant_id: str | None = None) -> Job:
        """Raises `JobNotFound`, also for another tenant's job."""
        rows = await self.database.rows(queries.job_named(_checked(job_id)))
        if not rows or tenant_id not in (None, rows[0].tenant_id):
            raise JobNotFound(f"no job {job_id}")
        return job_of(rows[0])

    async def list_jobs(
        self,
        *,
        tenant_id: str | None = None,
        statuses: Collection[JobStatus] = (),
        after: str | None = None,
        limit: int = 50,
    ) -> list[Job]:
        """Newest first, those older than the job `after`. Raises `JobNotFound` for what is no job's id."""
        after = None if after is None else _checked(after)
        page = queries.page_of_jobs(tenant_id, statuses, after, limit)
        return [job_of(row) for row in await self.database.rows(page)]

    async def events_after(self, job_id: str, seq: int = 0) -> list[JobEvent]:
        """Empty for a job that there is not."""
        if not _JOB_ID.fullmatch(job_id):
            return []
        return [event_of(row) for row in await self.database.rows(queries.events_of(job_id, seq))]

    async def estimate(self, job: Job) -> QueueEstimate | None:
        """`None` unless the job is queued."""
        if job.status is not JobStatus.QUEUED:
            return None
        sizes = await self.lanes()
        tenants = await self._tenants({job.tenant_id} | {lane.tenant_id for lane in sizes})
        weights = {tenant.id: tenant.plan.weight for tenant in tenants}
        return estimate_wait(job, sizes, weights, await self._before(job))

    async def cancel(self, job_id: str, tenant_id: str | None = None) -> Job:
        """A queued job is canceled at once, a running one is `canceling`, a final one stays."""
        await self._writer.run(control.cancel, control.Named(_checked(job_id), tenant_id))
        return await self.get(job_id)

    async def requeue(self, job_id: str) -> Job:
        """Queue a job again that failed, expired or was canceled, with fresh attempts. Raises `Conflict`."""
        await self._writer.run(control.requeue, control.Named(_checked(job_id), None))
        return await self.get(job_id)

    async def delete(self, job_id: str, tenant_id: str | None = None) -> None:
        """Forget a job; a live one is canceled first. Its rows and files go once it is final."""
        await self._writer.run(control.delete, control.Named(_checked(job_id), tenant_id))

    # What workers do

    async def register(self, registration: Registration) -> str:
        """The new worker's id."""
        worker_id = f"worker_{secrets.token_hex(8)}"
        return await self._writer.run(workers.register, workers.Registering(worker_id, registration))

    async def heartbeat(self, worker_id: str, beat: Heartbeat) -> ControlCommands:
        """Renew the leases held. Raises `WorkerNotFound`."""
        return await self._writer.run(workers.heartbeat, workers.Beat(worker_id, beat))

    async def orders(self, worker_id: str) -> ControlCommands:
        """What a worker should do now; `lost` is told by `heartbeat` and the bus only."""
        table = schema.workers
        rows = await self.database.rows(sa.select(table.c.is_draining).where(table.c.id == worker_id))
        if not rows:
            raise WorkerNotFound(f"no worker {worker_id}; register again")
        leaving = sa.select(leases.c.job_id).where(leases.c.worker_id == worker_id, leases.c.is_canceling)
        cancel = tuple(row.job_id for row in await self.database.rows(leaving))
        return ControlCommands(cancel=cancel, drain=rows[0].is_draining)

    async def drain(self, worker_id: str) -> None:
        """Give this worker no more jobs. Raises `WorkerNotFound`."""
        await self._writer.run(workers.drain, worker_id)

    async def claim(self, worker_id: str, claim: Claim) -> list[Lease]:
        """The fairest jobs for this worker now; empty if there are none. Raises `WorkerNotFound`."""
        return await self._writer.run(claims.claim, claims.ClaimBy(worker_id, claim))

    async def check_lease(self, job_id: str, lease_token: int) -> None:
        """Raises `LeaseLost` unless the lease is live."""
        held = sa.select(leases.c.job_id).where(
            leases.c.job_id == job_id, leases.c.lease_token == lease_token
        )
        if not await self.database.rows(held):
            raise LeaseLost(job_id)

    async def complete(self, job_id: str, completion: Completion) -> JobStatus:
        """Raises `LeaseLost`; repeating what finished the job gives its status again."""
        return await self._writer.run(finish.complete, finish.Said(job_id, completion))

    async def fail(self, job_id: str, failure: Failure) -> JobStatus:
        """The job's new status: `failed`, or `queued` for another attempt. Raises `LeaseLost`."""
        return await self._writer.run(finish.fail, finish.Said(job_id, failure))

    async def release(self, job_id: str, release: Release) -> JobStatus:
        """Hand a job back. Raises `LeaseLost`."""
        return await self._writer.run(finish.release, finish.Said(job_id, release))

    # What the control plane knows

    async def workers(self) -> list[Worker]:
        table = schema.workers
        held = sa.select(sa.func.count()).where(leases.c.worker_id == table.c.id).scalar_subquery()
        rows = await self.database.rows(
            sa.select(table, held.label("num_leases")).order_by(table.c.registered_at)
        )
        now = await self.database.now()
        return [workers.worker_of(row, now, self.config.lease_seconds) for row in rows]

    async def models(self) -> Mapping[str, ServedModel]:
        """By name; kept when the workers that offered them are gone."""
        rows = await self.database.rows(sa.select(schema.models).order_by(schema.models.c.name))
        return {row.name: _served(row) for row in rows}

    async def lanes(self) -> list[LaneSize]:
        return [
            LaneSize(Band(row.band), row.tenant_id, row.model, row.num_ready, row.work_seconds)
            for row in await self.database.rows(sa.select(lanes).where(lanes.c.num_ready > 0))
        ]

    async def tenant(self, tenant_id: str) -> Tenant:
        """A tenant that was never heard of has the default plan."""
        found = await self._tenants({tenant_id})
        return found[0] if found else Tenant(tenant_id, self.config.plan(self.config.default_plan))

    async def create_key(
        self,
        role: Role,
        *,
        tenant_id: str | None = None,
        plan: str | None = None,
        overrides: PlanOverrides | None = None,
    ) -> tuple[ApiKey, str]:
        """The key and its secret, which is shown once. `plan` and `overrides` change the tenant's."""
        new = keys.make_key(role, tenant_id, plan, overrides or PlanOverrides())
        return await self._writer.run(keys.create, new), new.shown

    async def keys(self) -> list[ApiKey]:
        table = schema.api_keys
        rows = await self.database.rows(sa.select(table).order_by(table.c.created_at, table.c.id))
        return [keys.key_of(row) for row in rows]

    async def revoke_key(self, key_id: str) -> None:
        """Raises `KeyNotFound`."""
        await self._writer.run(keys.revoke, key_id)

    async def authenticate(self, shown: str) -> ApiKey:
        """Raises `Unauthorized`."""
        key_id, secret = keys.split_secret(shown)
        table = schema.api_keys
        rows = await self.database.rows(sa.select(table).where(table.c.id == key_id))
        return keys.check(rows[0] if rows else None, secret)

    async def has_keys(self) -> bool:
        """Whether any key is valid."""
        table = schema.api_keys
        return bool(
            await self.database.rows(sa.select(table.c.id).where(table.c.revoked_at.is_(None)).limit(1))
        )

    async def signing_secret(self) -> bytes:
        """The secret that result URLs are signed with, the same for all replicas."""
        kept = await self._writer.run(keys.keep_signing_secret, secrets.token_hex(32))
        return bytes.fromhex(kept)

    # What the reaper does

    async def reap(self, holder: str) -> bool:
        """Do what time demands, if it is this reaper's turn."""
        return await self._writer.run(reaper.reap, holder)

    async def find_outdated(self, limit: int) -> list[str]:
        """Some final jobs whose time is over."""
        return await self._writer.run(reaper.find_outdated, limit)

    async def forget(self, job_ids: Collection[str]) -> list[str]:
        """Delete those that are still outdated, and give their ids."""
        return await self._writer.run(reaper.forget, job_ids)

    async def tokens_of(self, job_ids: Collection[str]) -> dict[str, int]:
        """The token whose files count, of every job that is known."""
        found: dict[str, int] = {}
        wanted_ids = sorted(job_ids)
        for start in range(0, len(wanted_ids), AT_ONCE):
            some = wanted_ids[start : start + AT_ONCE]
            wanted = sa.select(jobs.c.id, jobs.c.lease_token).where(jobs.c.id.in_(some))
            found |= {row.id: row.lease_token for row in await self.database.rows(wanted)}
        return found

    async def _tenants(self, tenant_ids: Collection[str]) -> list[Tenant]:
        table = schema.tenants
        rows = await self.database.rows(sa.select(table).where(table.c.id.in_(sorted(tenant_ids))))
        return [queue.tenant_of(row, self.config) for row in rows]

    async def _before(self, job: Job) -> Before:
        """One look at what goes before a queued job."""
        seq = sa.select(jobs.c.seq).where(jobs.c.id == job.id).scalar_subquery()
        mine = sa.select(lanes.c.lane).where(lanes.c.tenant_id == job.tenant_id, lanes.c.model == job.model)
        earlier = sa.select(sa.func.count(), sa.func.sum(ready.c.cost_seconds)).where(
            ready.c.lane.in_(mine), ready.c.seq < seq
        )
        running = sa.select(sa.func.sum(leases.c.charged)).where(leases.c.model == job.model)
        alive = [one for one in await self.workers() if one.state != "lost" and job.model in one.models]
        count, work = tuple((await self.database.rows(earlier))[0])
        in_hand = (await self.database.rows(running))[0][0]
        return Before(count, work or 0.0, in_hand or 0.0, len(alive))


def _new_job_id() -> str:
    """Ids sort by time: milliseconds, then chance."""
    return f"job_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(7)}"


def _checked(job_id: str) -> str:
    """Raises `JobNotFound` for what no job is called, which databases may not even take as text."""
    if not _JOB_ID.fullmatch(job_id):
        raise JobNotFound(f"no job {job_id!r}")
    return job_id


def _served(row: sa.Row[Any]) -> ServedModel:
    spec = ModelSpec.from_dict(orjson.loads(row.spec))
    fit = CostFit.from_dict(orjson.loads(row.fit)) if row.fit else default_fit(spec)
    return ServedModel(spec, fit)
