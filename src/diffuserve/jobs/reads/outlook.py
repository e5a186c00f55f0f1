"""State of the queue as estimates of waits need it, read once a second for all who ask."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.jobs.job import Job, QueueEstimate
from diffuserve.domain.workers.readiness import is_ready, status_of
from diffuserve.domain.workers.worker import Worker, is_exact
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Database
from diffuserve.jobs.policy.estimate import LaneSize, TenantStanding, WorkAhead, estimate_wait
from diffuserve.jobs.reads.operations import Operations
from diffuserve.jobs.reads.shared_reads import SharedReads
from diffuserve.jobs.records import lane_of

ready, leases, lanes = schema.ready, schema.leases, schema.lanes

OUTLOOK_SECONDS = 1.0
"""Age that an estimate may have: it is a range at best, and reading the queue takes milliseconds."""
_MAX_PARTS = 1_000

_OwnLane = tuple[str, str]
"""A lane's key, and its tenant."""


@dataclass(frozen=True)
class QueueState:
    """The whole queue: its lanes, how their tenants stand, and by model what runs and who serves it.

    `floors` are the virtual times by model at which tenants begin that were idle, and `handicaps` what their
    own are later by on a model.
    """

    lanes: Sequence[LaneSize]
    standings: Mapping[str, TenantStanding]
    floors: Mapping[str, float]
    handicaps: Mapping[str, Mapping[str, float]]
    running_seconds: Mapping[str, float]
    workers: Sequence[Worker]

    def standings_beside(self, job: Job, own: TenantStanding) -> Mapping[str, TenantStanding]:
        """Return the standings with the job's tenant, which begins at the floor if nothing of it waits."""
        handicaps = self.handicaps.get(job.model, {})
        standings = {**self.standings, job.tenant_id: own}
        for tenant_id in handicaps.keys() & standings.keys():
            standing = standings[tenant_id]
            standings[tenant_id] = replace(standing, vtime=standing.vtime + handicaps[tenant_id])
        own = standings[job.tenant_id]
        is_queued = any(lane.tenant_id == job.tenant_id and lane.model == job.model for lane in self.lanes)
        floor = 0.0 if is_queued else self.floors.get(job.model, 0.0)
        return {**standings, job.tenant_id: replace(own, vtime=max(own.vtime, floor))}


@dataclass(frozen=True)
class OwnQueue:
    """Ready jobs of one lane, in parts of `width` places, and how their tenant stands.

    A part has one place unless the lane is long. `parts` are the numbers of those that are not empty;
    `num_jobs[i]` and `work_seconds[i]` are those of the first `i` parts together.
    """

    standing: TenantStanding
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
        self._own: SharedReads[_OwnLane, OwnQueue] = SharedReads(self._read_own, OUTLOOK_SECONDS)

    async def estimate(self, job: Job) -> QueueEstimate:
        """Estimate how long a queued job waits."""
        queue = await self._queue.get(None)
        own = await self._own.get((lane_of(job), job.tenant_id))
        num_jobs, work_seconds = own.before(job.seq)
        running_seconds = queue.running_seconds.get(job.model, 0.0)
        status = status_of(job.model, queue.workers, self._operations.expected)
        num_ready = sum(
            is_ready(worker) and job.model in worker.models and _does(worker, job) for worker in queue.workers
        )
        ahead = WorkAhead(num_jobs, work_seconds, running_seconds, num_ready, status)
        return estimate_wait(job, queue.lanes, queue.standings_beside(job, own.standing), ahead)

    async def _read_queue(self, _key: None) -> QueueState:
        sizes = await self._operations.lanes()
        charged = sa.select(leases.c.model, sa.func.sum(leases.c.charged).label("seconds"))
        running = await self._database.rows(charged.group_by(leases.c.model))
        floors = await self._database.rows(sa.select(schema.floors))
        handicaps: dict[str, dict[str, float]] = defaultdict(dict)
        for row in await self._database.rows(sa.select(schema.handicaps)):
            handicaps[row.model][row.tenant_id] = row.seconds
        return QueueState(
            lanes=sizes,
            standings=await self._operations.standings({lane.tenant_id for lane in sizes}),
            floors={row.model: row.vtime for row in floors},
            handicaps=handicaps,
            running_seconds={row.model: row.seconds or 0.0 for row in running},
            workers=await self._operations.workers(),
        )

    async def _read_own(self, key: _OwnLane) -> OwnQueue:
        lane, tenant_id = key
        size = await self._database.rows(sa.select(lanes.c.num_ready).where(lanes.c.lane == lane))
        width = sum(row.num_ready for row in size) // _MAX_PARTS + 1
        part = (ready.c.seq // sa.literal_column(str(width))).label("part")
        sums = sa.select(
            part, sa.func.count().label("num_jobs"), sa.func.sum(ready.c.cost_seconds).label("work_seconds")
        )
        rows = await self._database.rows(sums.where(ready.c.lane == lane).group_by("part").order_by("part"))
        standings = await self._operations.standings({tenant_id})
        return _own_queue(standings[tenant_id], width, rows)


def _does(worker: Worker, job: Job) -> bool:
    """Return whether the worker does the phase that the job waits for."""
    if job.is_denoised:
        return worker.role.decodes
    return worker.role.denoises and (is_exact(worker.report) or not job.exact)


def _own_queue(standing: TenantStanding, width: int, rows: Collection[sa.Row[Any]]) -> OwnQueue:
    return OwnQueue(
        standing=standing,
        width=width,
        parts=[int(row.part) for row in rows],
        num_jobs=list(accumulate((row.num_jobs for row in rows), initial=0)),
        work_seconds=list(accumulate((row.work_seconds for row in rows), initial=0.0)),
    )
