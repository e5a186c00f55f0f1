"""State of the queue as estimates of waits need it: read once a second for all who ask, and kept up to date.

What this process changes meanwhile is added to what was read. Changes by other control planes are known from
the next read on.
"""

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import sqlalchemy as sa

from diffuserve.domain.jobs.job import Band, Job, JobStatus, QueueEstimate
from diffuserve.domain.workers.exactness import is_exact
from diffuserve.domain.workers.readiness import ModelStatus, is_ready, status_of
from diffuserve.domain.workers.worker import Worker, WorkerState
from diffuserve.jobs.database import queries, schema
from diffuserve.jobs.database.connections import IDS, Database
from diffuserve.jobs.database.lane_change import LaneChange, Moved
from diffuserve.jobs.policy.estimate import LaneSize, RunningWork, TenantStanding, WorkAhead, estimate_wait
from diffuserve.jobs.reads.operations import Operations
from diffuserve.jobs.reads.past_estimates import PastEstimates
from diffuserve.jobs.reads.recent_changes import RecentChanges
from diffuserve.jobs.reads.shared_reads import SharedReads
from diffuserve.jobs.records import lane_of

jobs, ready, leases, lanes = schema.jobs, schema.ready, schema.leases, schema.lanes

OUTLOOK_SECONDS = 1.0
"""Age that an estimate may have: it is a range at best, and reading the queue takes milliseconds."""
_MAX_PARTS = 1_000

_RUNNING = sa.select(
    leases.c.model, sa.func.count().label("num"), sa.func.sum(leases.c.charged).label("seconds")
).group_by(leases.c.model)
_ENDS = sa.select(jobs.c.id, jobs.c.status, jobs.c.finished_at).where(jobs.c.id.in_(IDS))

_OwnLane = tuple[str, str]
"""A lane's key, and its tenant."""


@dataclass(frozen=True)
class QueueState:
    """The whole queue: its lanes by key, how their tenants stand, and by model what runs and who serves it.

    `mark` is that of the recent changes when it was read, and `queued` are the tenants that had ready jobs,
    each with a model. `floors` are the virtual times by model at which tenants begin that were idle, and
    `handicaps` what their own are later by on a model.
    """

    mark: int
    lanes: Mapping[str, LaneSize]
    queued: Collection[tuple[str, str]]
    standings: Mapping[str, TenantStanding]
    floors: Mapping[str, float]
    handicaps: Mapping[str, Mapping[str, float]]
    running: Mapping[str, RunningWork]
    workers: Sequence[Worker]

    def standings_beside(self, job: Job, own: TenantStanding) -> Mapping[str, TenantStanding]:
        """Return the standings with the job's tenant, which begins at the floor if nothing of it waits."""
        handicaps = self.handicaps.get(job.model, {})
        standings = {**self.standings, job.tenant_id: own}
        for tenant_id in handicaps.keys() & standings.keys():
            standing = standings[tenant_id]
            standings[tenant_id] = replace(standing, vtime=standing.vtime + handicaps[tenant_id])
        own = standings[job.tenant_id]
        is_queued = (job.tenant_id, job.model) in self.queued
        floor = 0.0 if is_queued else self.floors.get(job.model, 0.0)
        return {**standings, job.tenant_id: replace(own, vtime=max(own.vtime, floor))}

    def after(self, changes: Iterable[LaneChange]) -> "QueueState":
        """Return the queue after these changes, oldest first."""
        found, running = dict(self.lanes), defaultdict(RunningWork, self.running)
        standings = dict(self.standings)
        for change in changes:
            if change.moved is Moved.ENDED:
                model = change.model or ""
                running[model] = running[model].plus(change.num_added, change.seconds_added)
                continue
            before = found.get(change.lane) or _empty_lane(change)
            if before is None:
                continue  # it left a lane that has not been read, nor filled since
            idle = TenantStanding(vtime=self.floors.get(before.model, 0.0))
            standing = standings.setdefault(before.tenant_id, idle)
            found[change.lane] = replace(
                before,
                num_ready=max(0, before.num_ready + change.num_added),
                work_seconds=max(0.0, before.work_seconds + change.seconds_added),
            )
            if change.moved is Moved.CLAIMED:
                seconds = -change.seconds_added
                running[before.model] = running[before.model].plus(len(change.jobs), seconds)
                standings[before.tenant_id] = replace(
                    standing, vtime=standing.vtime + seconds / standing.weight
                )
        return replace(self, lanes=found, standings=standings, running=running)


def _empty_lane(change: LaneChange) -> LaneSize | None:
    if change.moved is not Moved.IN:
        return None
    return LaneSize(Band(change.band), change.tenant_id, change.model or "", 0, 0.0, change.is_decode)


@dataclass(frozen=True)
class OwnQueue:
    """Ready jobs of one lane, in parts of `width` places, and how their tenant stands.

    `mark` is that of the recent changes when it was read. A part has one place unless the lane is long.
    `parts` are the numbers of those that are not empty; `num_jobs[i]` and `work_seconds[i]` are those of the
    first `i` parts together.
    """

    mark: int
    lane: str
    standing: TenantStanding
    width: int
    parts: Sequence[int]
    num_jobs: Sequence[int]
    work_seconds: Sequence[float]

    def before(self, seq: int, changes: Iterable[LaneChange]) -> tuple[int, float]:
        """Return number and device-seconds of the jobs before that of `seq`, after these changes."""
        index = bisect_left(self.parts, seq // self.width)
        num_jobs, work_seconds = self.num_jobs[index], self.work_seconds[index]
        for change in changes:
            if change.lane == self.lane:
                sign = 1 if change.moved is Moved.IN else -1
                earlier = [seconds for place, seconds in change.jobs if place < seq]
                num_jobs += sign * len(earlier)
                work_seconds += sign * sum(earlier)
        return max(0, num_jobs), max(0.0, work_seconds)


class Outlook:
    """Estimates waits from what was read within the last second, and from what changed since."""

    def __init__(self, database: Database, operations: Operations, recent: RecentChanges) -> None:
        self._database = database
        self._operations = operations
        self._recent = recent
        self._queue: SharedReads[None, QueueState] = SharedReads(self._read_queue, OUTLOOK_SECONDS)
        self._own: SharedReads[_OwnLane, OwnQueue] = SharedReads(self._read_own, OUTLOOK_SECONDS)
        self._past = PastEstimates()
        self._clock_lead = 0.0  # of the store's clock before this process's

    async def estimate(self, job: Job) -> QueueEstimate:
        """Estimate how long a queued job waits, and learn from how long it then does."""
        estimate = await self._estimate(job)
        self._past.note(job, time.monotonic() + self._clock_lead, estimate)
        return self._past.widen(job, estimate)

    async def foresee(self, job: Job) -> QueueEstimate:
        """Estimate how long a job would wait that does not exist."""
        return self._past.widen(job, await self._estimate(job))

    async def _estimate(self, job: Job) -> QueueEstimate:
        read = await self._queue.get(None)
        own = await self._own.get((lane_of(job), job.tenant_id))
        queue = read.after(self._recent.since(read.mark))
        num_jobs, work_seconds = own.before(job.seq, self._recent.since(own.mark))
        serving = [worker for worker in queue.workers if job.model in worker.models and _does(worker, job)]
        ahead = WorkAhead(
            num_jobs=num_jobs,
            work_seconds=work_seconds,
            running=queue.running.get(job.model, RunningWork()),
            num_workers=sum(map(is_ready, serving)),
            num_coming=sum(worker.state is WorkerState.INITIALIZING for worker in serving),
            status=status_of(job.model, queue.workers, self._operations.expected),
        )
        standing = queue.standings[job.tenant_id] if job.tenant_id in read.standings else own.standing
        standings = queue.standings_beside(job, standing)
        return estimate_wait(job, [*queue.lanes.values()], standings, ahead)

    async def _read_queue(self, _key: None) -> QueueState:
        mark, sizes = self._recent.mark, await self._operations.lanes_by_key()
        running = await self._database.rows(_RUNNING)
        floors = await self._database.rows(sa.select(schema.floors))
        handicaps: dict[str, dict[str, float]] = defaultdict(dict)
        for row in await self._database.rows(sa.select(schema.handicaps)):
            handicaps[row.model][row.tenant_id] = row.seconds
        now, workers = await self._operations.workers_at()
        self._clock_lead = now - time.monotonic()
        await self._learn(workers)
        return QueueState(
            mark=mark,
            lanes=sizes,
            queued={(lane.tenant_id, lane.model) for lane in sizes.values()},
            standings=await self._operations.standings({lane.tenant_id for lane in sizes.values()}),
            floors={row.model: row.vtime for row in floors},
            handicaps=handicaps,
            running={row.model: RunningWork(row.num, row.seconds) for row in running},
            workers=workers,
        )

    async def _learn(self, workers: Sequence[Worker]) -> None:
        """Compare what jobs were told with when they ended; their rows have that of every control plane."""
        expected = self._operations.expected
        self._past.forget(lambda model: status_of(model, workers, expected) is not ModelStatus.READY)
        awaited = self._past.job_ids
        rows = await queries.rows_of(self._database, _ENDS, awaited)
        alive = {row.id for row in rows if row.finished_at is None}
        succeeded = {row.id: row.finished_at for row in rows if row.status == JobStatus.SUCCEEDED}
        self._past.settle({job_id: succeeded.get(job_id) for job_id in awaited if job_id not in alive})

    async def _read_own(self, key: _OwnLane) -> OwnQueue:
        lane, tenant_id = key
        mark = self._recent.mark
        size = await self._database.rows(sa.select(lanes.c.num_ready).where(lanes.c.lane == lane))
        width = sum(row.num_ready for row in size) // _MAX_PARTS + 1
        part = (ready.c.seq // sa.literal_column(str(width))).label("part")
        sums = sa.select(
            part, sa.func.count().label("num_jobs"), sa.func.sum(ready.c.cost_seconds).label("work_seconds")
        )
        rows = await self._database.rows(sums.where(ready.c.lane == lane).group_by("part").order_by("part"))
        standings = await self._operations.standings({tenant_id})
        return OwnQueue(
            mark=mark,
            lane=lane,
            standing=standings[tenant_id],
            width=width,
            parts=[int(row.part) for row in rows],
            num_jobs=list(accumulate((row.num_jobs for row in rows), initial=0)),
            work_seconds=list(accumulate((row.work_seconds for row in rows), initial=0.0)),
        )


def _does(worker: Worker, job: Job) -> bool:
    """Return whether the worker does the phase that the job waits for."""
    if job.is_denoised:
        return worker.role.decodes
    return worker.role.denoises and (is_exact(worker.report) or not job.exact)
