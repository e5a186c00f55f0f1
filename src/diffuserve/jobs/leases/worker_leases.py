"""Workers and their leases: registration, heartbeats, claims and the ends of attempts."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import Conflict, LeaseLost, WorkerNotFound
from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.job import Band, JobStatus
from diffuserve.domain.workers.model_orders import ModelOrder
from diffuserve.domain.workers.worker import (
    Completion,
    ControlCommands,
    Failure,
    HandOver,
    Heartbeat,
    Lease,
    ModelOffer,
    Registration,
    Release,
    StoredLatents,
)
from diffuserve.domain.workers.worker_ids import is_owned, new_worker_id
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Database
from diffuserve.jobs.database.writer import Writer
from diffuserve.jobs.leases.checkpoints import KeepCheckpoint, load_checkpoint
from diffuserve.jobs.leases.claim import Claimed, ClaimJobs
from diffuserve.jobs.leases.finish import CompleteJob, FailJob, HandOverJob, ReleaseJob
from diffuserve.jobs.records import JSON_COLUMNS
from diffuserve.jobs.workers.kept_orders import KEPT_FOR, orders_in
from diffuserve.jobs.workers.leaving import LeaveWorker
from diffuserve.jobs.workers.model_orders import CancelOrder, OfferMore, PlaceOrder
from diffuserve.jobs.workers.registry import (
    DeregisterWorker,
    DrainWorker,
    RecordHeartbeat,
    RegisterWorker,
    commands_of,
)

leases = schema.leases

# Built once, because building it takes longer than executing it.
_LIVE = sa.select(leases.c.worker_id).where(
    leases.c.job_id == sa.bindparam("job"), leases.c.lease_token == sa.bindparam("token")
)
_HELD_BY = sa.select(leases.c.job_id, leases.c.lease_token).where(
    leases.c.worker_id == sa.bindparam("worker")
)
_TOLD = sa.select(leases).where(sa.or_(leases.c.is_canceling, leases.c.is_preempted))


class WorkerLeases:
    """The store as workers use it. Every method may raise `ServerUnavailable`."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    async def register(self, registration: Registration, key_id: str = "") -> str:
        """Register a worker, with this API key, and return its new id. Raise `ModelConflict`."""
        worker_id = new_worker_id(key_id)
        await self._writer.run(RegisterWorker(worker_id, registration))
        return worker_id

    async def heartbeat(self, worker_id: str, heartbeat: Heartbeat) -> ControlCommands:
        """Renew the leases that the worker holds. Raise `WorkerNotFound`."""
        return await self._writer.run(RecordHeartbeat(worker_id, heartbeat))

    async def control_commands(self, worker_id: str) -> ControlCommands:
        """Return the worker's pending commands. Raise `WorkerNotFound`.

        `lost` is empty here: lost leases are reported by `heartbeat` and by the event bus only.
        """
        table = schema.workers
        rows = await self._database.rows(sa.select(table.c.is_draining).where(table.c.id == worker_id))
        if not rows:
            raise WorkerNotFound(f"no worker {worker_id}; register again")
        told = await self._database.rows(_TOLD.where(leases.c.worker_id == worker_id))
        return commands_of(told, is_draining=rows[0].is_draining)

    async def all_control_commands(self) -> dict[str, ControlCommands]:
        """Return the pending commands of every known worker, by its id."""
        table = schema.workers
        told: dict[str, list[sa.Row[Any]]] = defaultdict(list)
        for row in await self._database.rows(_TOLD):
            told[row.worker_id].append(row)
        return {
            row.id: commands_of(told[row.id], is_draining=row.is_draining)
            for row in await self._database.rows(sa.select(table.c.id, table.c.is_draining))
        }

    async def has_work(self, worst: Band = Band.BATCH) -> bool:
        """Return whether a job of a band up to the `worst` is ready, or any job is about to become ready.

        Whether a certain worker may run it is not checked.
        """
        lanes, delayed = schema.lanes, schema.delayed
        bands = [band.value for band in Band if band.rank <= worst.rank]
        is_ready = sa.exists(sa.select(lanes.c.lane).where(lanes.c.num_ready > 0, lanes.c.band.in_(bands)))
        is_due = sa.exists(sa.select(delayed.c.job_id).where(delayed.c.due_at <= await self._database.now()))
        rows = await self._database.rows(sa.select(sa.or_(is_ready, is_due).label("has_work")))
        return bool(rows[0].has_work)

    async def leave(self, worker_id: str, desired: Mapping[str, int], least: int = 0) -> bool:
        """Let an idle worker go while its pools have more than they should. Raise `WorkerNotFound`.

        They should have the `desired` numbers, by model, and at least `least`. Return whether it may go; it
        gets no more jobs then.
        """
        return await self._writer.run(LeaveWorker(worker_id, desired, least))

    async def drain(self, worker_id: str) -> None:
        """Grant this worker no more jobs. Raise `WorkerNotFound`."""
        await self._writer.run(DrainWorker(worker_id))

    async def order_model(self, worker_id: str, order: ModelOrder, accepts_license: bool = False) -> None:
        """Give this worker an order of a model. Raise `WorkerNotFound`, and what `check_order` raises."""
        await self._writer.run(PlaceOrder(worker_id, order, accepts_license))

    async def cancel_order(self, worker_id: str, model: str | None = None) -> None:
        """Take this worker's order of a model back, by default its last one. Raise `WorkerNotFound`."""
        await self._writer.run(CancelOrder(worker_id, model))

    async def kept_orders(self, worker_id: str) -> tuple[ModelOrder, ...]:
        """Return the orders that this worker gets again when it starts anew. Raise `WorkerNotFound`."""
        rows = await self._database.rows(KEPT_FOR, {"worker": worker_id})
        if not rows:
            raise WorkerNotFound(f"no worker {worker_id}")
        return orders_in(rows[0].orders)

    async def offer_more(self, worker_id: str, offers: Sequence[ModelOffer]) -> None:
        """Add models to those that this worker offers. Raise `WorkerNotFound` and `ModelConflict`."""
        await self._writer.run(OfferMore(worker_id, offers))

    async def deregister(self, worker_id: str) -> None:
        """Forget this worker, which has ended. Leases that it still holds expire."""
        await self._writer.run(DeregisterWorker(worker_id))

    async def claim(self, worker_id: str, claim: Claim) -> list[Lease]:
        """Lease the jobs that this worker gets by fairness, or return `[]`. Raise `WorkerNotFound`."""
        return (await self.try_claim(worker_id, claim)).leases

    async def try_claim(self, worker_id: str, claim: Claim) -> Claimed:
        """Lease jobs as `claim` does, and say when to try again. Raise `WorkerNotFound`."""
        return await self._writer.run(ClaimJobs(worker_id, claim))

    async def check(self, job_id: str, lease_token: int, key_id: str = "") -> None:
        """Raise `LeaseLost` unless the lease is live, and held by a worker with this API key."""
        rows = await self._database.rows(_LIVE, {"job": job_id, "token": lease_token})
        if not rows or not is_owned(rows[0].worker_id, key_id):
            raise LeaseLost(job_id)

    async def held_by(self, worker_id: str) -> dict[str, int]:
        """Return the lease tokens of the jobs that the worker holds, by job id."""
        rows = await self._database.rows(_HELD_BY, {"worker": worker_id})
        return {row.job_id: row.lease_token for row in rows}

    async def check_live(self, job_id: str, lease_token: int, key_id: str = "") -> None:
        """Raise as `check` does, and `Conflict` unless the job was submitted as a live one."""
        await self.check(job_id, lease_token, key_id)
        rows = await self._database.rows(sa.select(schema.jobs.c.live).where(schema.jobs.c.id == job_id))
        if not (rows and rows[0].live):
            raise Conflict(
                f'job {job_id} was submitted without "live": true; store its clip when it is whole'
            )

    async def complete(self, job_id: str, completion: Completion, key_id: str = "") -> JobStatus:
        """Finish the job and return its status, the same status again if repeated. Raise `LeaseLost`."""
        return await self._writer.run(CompleteJob(job_id, completion, key_id))

    async def hand_over(self, job_id: str, hand_over: HandOver, key_id: str = "") -> JobStatus:
        """Queue the job to be decoded; return its status, also if repeated. Raise `LeaseLost`."""
        return await self._writer.run(HandOverJob(job_id, hand_over, key_id))

    async def latents_of(self, job_id: str) -> StoredLatents | None:
        """Return the finished latents of a job, or `None` if there are none yet."""
        return (await self.begun(job_id))[0]

    async def begun(self, job_id: str) -> tuple[StoredLatents | None, StoredCheckpoint | None]:
        """Return the finished latents of a job and its checkpoint, each `None` if there is none yet."""
        jobs = schema.jobs
        rows = await self._database.rows(
            sa.select(jobs.c.latents, jobs.c.checkpoint).where(jobs.c.id == job_id)
        )
        if not rows:
            return None, None
        latents = None if rows[0].latents is None else JSON_COLUMNS["latents"].load(rows[0].latents)
        return latents, load_checkpoint(rows[0].checkpoint)

    async def keep_checkpoint(
        self, job_id: str, checkpoint: StoredCheckpoint, key_id: str = ""
    ) -> StoredCheckpoint | None:
        """Store the job's newest checkpoint, and return the previous one. Raise `LeaseLost`."""
        return await self._writer.run(KeepCheckpoint(job_id, checkpoint, key_id))

    async def fail(self, job_id: str, failure: Failure, key_id: str = "") -> JobStatus:
        """End the attempt; return `failed`, or `queued` if another attempt follows. Raise `LeaseLost`."""
        return await self._writer.run(FailJob(job_id, failure, key_id))

    async def release(self, job_id: str, release: Release, key_id: str = "") -> JobStatus:
        """Release the job to the queue and return its status. Raise `LeaseLost`."""
        return await self._writer.run(ReleaseJob(job_id, release, key_id))
