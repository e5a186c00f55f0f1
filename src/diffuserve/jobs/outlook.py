"""State of the queue as estimates of waits need it, read once a second for all who ask."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.job import Job, QueueEstimate
from diffuserve.domain.readiness import is_ready, status_of
from diffuserve.domain.worker import Worker
from diffuserve.jobs import schema
from diffuserve.jobs.database import Database
from diffuserve.jobs.estimate import LaneSize, WorkAhead, estimate_wait
from diffuserve.jobs.operations import Operations
from diffuserve.jobs.shared_reads import SharedReads

ready, leases, lanes = schema.ready, schema.leases, schema.lanes

OUTLOOK_SECONDS = 1.0
"""Age that an estimate may have: it is a range at best, and reading the queue takes milliseconds."""
_MAX_PARTS = 1_000

_OwnLanes = tuple[str, str, bool]
"""A tenant, a model, and whether its latents are finished."""


@dataclass(frozen=True)
class QueueState:
    """The whole queue: its lanes, the weights of their tenants, and by model what runs and who serves it."""

    lanes: Sequence[LaneSize]
    weights: Mapping[str, float]
    running_seconds: Mapping[str, float]
    workers: Sequence[Worker]


@dataclass(frozen=True)
class OwnQueue:
    """Ready jobs of one tenant for one model and phase, in parts of `width` places, and the tenant's weight.

    A part has one place unless the queue is long. `parts` are the numbers of those that are not empty;
    `num_jobs[i]` and `work_seconds[i]` are those of the first `i` parts together.
    """

    weight: float
    width: int
    parts: Sequence[int]
    num_jobs: Sequence[int]
    work_seconds: Sequence[float]

    def before(self, seq: int) -> tuple[int, float]:
        """Return the number and the device-seconds of the jobs whose part comes before that of `seq`."""
        index = bisect_left(self.parts, seq // self.width)
        return self.num_jobs[index], self.work_seconds[index]


class Outlook:
    """Estimates waits from what was read within the last second, however many ask."""

    def __init__(self, database: Database, operations: Operations) -> None:
        self._database = database
        self._operations = operations
        self._queue: SharedReads[None, QueueState] = SharedReads(self._read_queue, OUTLOOK_SECONDS)
        self._own: SharedReads[_OwnLanes, OwnQueue] = SharedReads(self._read_own, OUTLOOK_SECONDS)

    async def estimate(self, job: Job) -> QueueEstimate:
        """Estimate how long a queued job waits."""
        queue = await self._queue.get(None)
        own = await self._own.get((job.tenant_id, job.model, job.is_denoised))
        num_jobs, work_seconds = own.before(job.seq)
        running_seconds = queue.running_seconds.get(job.model, 0.0)
        status = status_of(job.model, queue.workers, self._operations.expected)
        num_ready = sum(
            is_ready(worker) and job.model in worker.models and _does(worker, job) for worker in queue.workers
        )
        ahead = WorkAhead(num_jobs, work_seconds, running_seconds, num_ready, status)
        weights = {**queue.weights, job.tenant_id: own.weight}
        return estimate_wait(job, queue.lanes, weights, ahead)

    async def _read_queue(self, _key: None) -> QueueState:
        sizes = await self._operations.lanes()
        tenants = await self._operations.tenants({lane.tenant_id for lane in sizes})
        charged = sa.select(leases.c.model, sa.func.sum(leases.c.charged).label("seconds"))
        running = await self._database.rows(charged.group_by(leases.c.model))
        return QueueState(
            lanes=sizes,
            weights={tenant.id: tenant.plan.weight for tenant in tenants},
            running_seconds={row.model: row.seconds or 0.0 for row in running},
            workers=await self._operations.workers(),
        )

    async def _read_own(self, key: _OwnLanes) -> OwnQueue:
        tenant_id, model, is_denoised = key
        is_own = sa.and_(
            lanes.c.tenant_id == tenant_id, lanes.c.model == model, lanes.c.is_decode == is_denoised
        )
        own_lanes = await self._database.rows(sa.select(lanes.c.lane, lanes.c.num_ready).where(is_own))
        width = sum(row.num_ready for row in own_lanes) // _MAX_PARTS + 1
        part = (ready.c.seq // sa.literal_column(str(width))).label("part")
        sums = sa.select(
            part, sa.func.count().label("num_jobs"), sa.func.sum(ready.c.cost_seconds).label("work_seconds")
        )
        in_own = ready.c.lane.in_([row.lane for row in own_lanes])
        rows = await self._database.rows(sums.where(in_own).group_by("part").order_by("part"))
        tenant = await self._operations.tenant(tenant_id)
        return _own_queue(tenant.plan.weight, width, rows)


def _does(worker: Worker, job: Job) -> bool:
    """Return whether the worker's role includes the phase that the job waits for."""
    return worker.role.decodes if job.is_denoised else worker.role.denoises


def _own_queue(weight: float, width: int, rows: Collection[sa.Row[Any]]) -> OwnQueue:
    return OwnQueue(
        weight=weight,
        width=width,
        parts=[int(row.part) for row in rows],
        num_jobs=list(accumulate((row.num_jobs for row in rows), initial=0)),
        work_seconds=list(accumulate((row.work_seconds for row in rows), initial=0.0)),
    )
