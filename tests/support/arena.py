"""An arena in which tenants play strategies: the real store, a clock that is moved, workers that only count.

A simulated worker behaves as the real one does: it claims what its capacity allows, steps its jobs together,
those that go first in an engine's order, tells its progress in heartbeats alone, drops canceled jobs after
the step under way, puts preempted ones down with a checkpoint, and says what each attempt took. The seconds
of the device that tenants had are counted here, whatever the store believes.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from diffuserve.agent.state.capacity import EngineJob, free_capacity
from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.job import Job, JobError, JobResult, NewJob, Phase
from diffuserve.domain.workers.worker import (
    Completion,
    ControlCommands,
    Failure,
    Heartbeat,
    HeldLease,
    Lease,
    Release,
    ReleaseCause,
)
from diffuserve.domain.workers.worker_ids import attempt_id
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import REPORT, add_worker, new_job

COST = 8.0
"""Device-seconds of a job whose player does not say."""
NUM_STEPS = 5
"""Steps of every job that is not so long that they would be longer than `LONGEST_STEP` seconds."""
LONGEST_STEP = 4.0
TOKENS = 32
"""Tokens of a step: two jobs of as many fill a worker, which then has room for those alone that go before."""
MAX_JOBS = 8
AGEING_STEPS = 8
HEARTBEAT_SECONDS = 10.0
LOOK_SECONDS = 4.5
"""Seconds between two rounds of the reaper and the preemptor: fewer than make an outage."""


class Player(Protocol):
    """A tenant, or several, that act between any two steps of a worker."""

    async def act(self, arena: "Arena") -> None:
        """Submit, cancel, or do nothing."""
        ...


@dataclass
class Running:
    """A job that a worker holds: `step` of its steps are done in `seconds`, by all of its attempts."""

    lease: Lease
    cost: float
    fails: str
    total: int
    step: int = 0
    seconds: float = 0.0
    skipped: int = 0
    is_canceled: bool = False
    is_preempted: bool = False

    @property
    def in_engine(self) -> EngineJob:
        return EngineJob(self.lease.band, self.lease.step_tokens)

    @property
    def step_seconds(self) -> float:
        return self.cost / self.total


@dataclass
class SimulatedWorker:
    """A worker with at most one model in memory, which takes `load_seconds` to load."""

    id: str
    models: tuple[str, ...]
    load_seconds: float
    says_seconds: bool
    held: dict[str, Running] = field(default_factory=dict)
    resident: str | None = None
    told_at: float = 0.0


@dataclass
class Arena:
    """The store, its workers, and what every tenant had: `used` device-seconds, and the `waits` of its jobs.

    `costs` and `fails` are what a job really takes, and the code that it fails with at its last step.
    """

    store: JobStore
    clock: FakeClock
    workers: list[SimulatedWorker] = field(default_factory=list)
    used: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    open_jobs: dict[str, dict[str, Job]] = field(default_factory=lambda: defaultdict(dict))
    running: dict[str, Running] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    fails: dict[str, str] = field(default_factory=dict)
    kept: dict[str, tuple[int, float]] = field(default_factory=dict)
    began_at: float = 0.0
    _claims: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self.clock.now - self.began_at

    async def add_worker(self, *models: str, load_seconds: float = 0.0, says_seconds: bool = True) -> None:
        """Add a worker; one of an earlier version does not say what jobs took that it dropped."""
        worker_id = await add_worker(self.store, *models)
        self.workers.append(SimulatedWorker(worker_id, models, load_seconds, says_seconds))

    async def offer(self, model: str) -> None:
        """Make a model known that no worker serves."""
        worker_id = await add_worker(self.store, model)
        await self.store.leases.deregister(worker_id)

    def is_open(self, job: Job) -> bool:
        """Return whether a job waits or runs."""
        return job.id in self.open_jobs[job.tenant_id]

    async def submit(
        self, tenant: str, cost: float = COST, *, actual: float | None = None, fails: str = "", **values: Any
    ) -> Job:
        """Submit a job that is predicted to take `cost` device-seconds, and takes `actual` ones."""
        new: NewJob = new_job(tenant, cost_seconds=cost, decode_seconds=0.0, **values)
        job = await self.store.jobs.submit(new)
        self.costs[job.id], self.fails[job.id] = cost if actual is None else actual, fails
        self.open_jobs[tenant][job.id] = job
        return job

    async def cancel(self, job: Job) -> None:
        """Cancel a job, queued or running."""
        await self.store.jobs.cancel(job.id)
        if job.id in self.running:
            self.running[job.id].is_canceled = True
        else:
            self.open_jobs[job.tenant_id].pop(job.id, None)

    async def play(self, players: Sequence[Player], seconds: float) -> None:
        """Let `seconds` pass."""
        end, looked_at = self.now + seconds, self.now
        turns = [(self.now, number) for number in range(len(self.workers))]
        while turns[0][0] < end:
            at, number = heapq.heappop(turns)
            while looked_at + LOOK_SECONDS <= at:
                looked_at += LOOK_SECONDS
                self.clock.now = self.began_at + looked_at
                await self._look()
            self.clock.now = self.began_at + max(at, self.now)
            for player in players:
                await player.act(self)
            took = await self._turn(self.workers[number])
            heapq.heappush(turns, (self.now + took, number))

    async def _look(self) -> None:
        await self.store.housekeeping.reap("arena")
        is_urgent = await self.store.housekeeping.make_room() is not None
        for worker in self.workers:
            if is_urgent:  # else nothing was told to make room
                self._follow(worker, await self.store.leases.control_commands(worker.id))
            live = await self.store.leases.held_by(worker.id)
            for job in [job for job in worker.held.values() if job.lease.job_id not in live]:
                self._let_go(worker, job)

    def _follow(self, worker: SimulatedWorker, commands: ControlCommands) -> None:
        for job in worker.held.values():
            attempt = attempt_id(job.lease.job_id, job.lease.lease_token)
            job.is_preempted |= attempt in commands.preempt

    async def _turn(self, worker: SimulatedWorker) -> float:
        """End what has ended, take new jobs, and begin a step; return the seconds that this takes."""
        for job in list(worker.held.values()):
            await self._end(worker, job)
        if self.now >= worker.told_at + HEARTBEAT_SECONDS:
            await self._tell(worker)
        await self._claim(worker)
        loading = await self._load(worker)
        return loading or self._step(worker) or 0.5

    def _step(self, worker: SimulatedWorker) -> float:
        """Do a step of the jobs that go first; each is counted with its own part of it."""
        present = [job for job in worker.held.values() if job.lease.model == worker.resident]
        best = min((job.in_engine.place(TOKENS).order for job in present), default=(0, 0))
        stepping = [
            job for job in present if job.in_engine.place(TOKENS).order == best or job.skipped >= AGEING_STEPS
        ]
        for job in present:
            job.skipped += 1
        for job in stepping:
            job.step, job.seconds, job.skipped = job.step + 1, job.seconds + job.step_seconds, 0
            self.used[job.lease.tenant_id] += job.step_seconds
        return sum(job.step_seconds for job in stepping)

    async def _load(self, worker: SimulatedWorker) -> float:
        """Load the model of a job that was claimed, once those of the present one are done."""
        models = [job.lease.model for job in worker.held.values()]
        if not models or worker.resident in models:
            return 0.0
        worker.resident = models[0]
        return worker.load_seconds

    async def _claim(self, worker: SimulatedWorker) -> None:
        room = free_capacity(MAX_JOBS, TOKENS, [job.in_engine for job in worker.held.values()], 0)
        if not room.num_jobs:
            return
        claim = Claim(
            claim_id=f"claim-{next(self._claims)}",
            num_jobs=room.num_jobs,
            num_tokens=room.num_tokens,
            models=worker.models,
            resident_models=() if worker.resident is None else (worker.resident,),
            ahead_of={} if room.ahead_of is None else dict.fromkeys(worker.models, room.ahead_of),
        )
        for lease in await self.store.leases.claim(worker.id, claim):
            if lease.attempt == 1:
                self.waits[lease.tenant_id].append(self.clock.now - lease.created_at)
            step, seconds = self.kept.get(lease.job_id, (0, 0.0))
            cost, fails = self.costs[lease.job_id], self.fails[lease.job_id]
            total = max(NUM_STEPS, round(cost / LONGEST_STEP))
            job = Running(lease, cost, fails, total, step, seconds)
            worker.held[lease.job_id] = self.running[lease.job_id] = job

    async def _tell(self, worker: SimulatedWorker) -> None:
        held = tuple(
            HeldLease(
                job_id=job.lease.job_id,
                lease_token=job.lease.lease_token,
                phase=Phase.DENOISE,
                step=job.step,
                total=job.total,
            )
            for job in worker.held.values()
        )
        commands = await self.store.leases.heartbeat(worker.id, Heartbeat(report=REPORT, held=held))
        worker.told_at = self.now
        for job_id in commands.lost:
            self._let_go(worker, worker.held[job_id])

    async def _end(self, worker: SimulatedWorker, job: Running) -> None:
        if job.is_canceled:
            await self._fail(worker, job, "aborted")
        elif job.step == job.total and job.fails:
            await self._fail(worker, job, job.fails)
        elif job.step == job.total:
            done = Completion(
                lease_token=job.lease.lease_token, result=JobResult(), actual_seconds=job.seconds
            )
            await self._report(worker, job, self.store.leases.complete(job.lease.job_id, done))
        elif job.is_preempted:
            await self._put_down(worker, job)

    async def _fail(self, worker: SimulatedWorker, job: Running, code: str) -> None:
        error = JobError(code, "…", retryable=code == "broken")
        seconds = job.seconds if worker.says_seconds else None
        failure = Failure(lease_token=job.lease.lease_token, error=error, actual_seconds=seconds)
        await self._report(worker, job, self.store.leases.fail(job.lease.job_id, failure))

    async def _put_down(self, worker: SimulatedWorker, job: Running) -> None:
        token, seconds = job.lease.lease_token, job.seconds if worker.says_seconds else None
        if job.step:
            stored = StoredCheckpoint(
                lease_token=token, slot=0, step=job.step, size_bytes=1, sha256="ab" * 32
            )
            await self.store.leases.keep_checkpoint(job.lease.job_id, stored)
            self.kept[job.lease.job_id] = job.step, job.seconds
        released = Release(lease_token=token, cause=ReleaseCause.PREEMPTED, actual_seconds=seconds)
        await self._report(worker, job, self.store.leases.release(job.lease.job_id, released))

    async def _report(self, worker: SimulatedWorker, job: Running, report: Awaitable[object]) -> None:
        status = await report
        self._let_go(worker, job)
        if status == "queued":
            self.open_jobs[job.lease.tenant_id].setdefault(job.lease.job_id, await self._job(job))

    async def _job(self, job: Running) -> Job:
        return await self.store.jobs.get(job.lease.job_id)

    def _let_go(self, worker: SimulatedWorker, job: Running) -> None:
        del worker.held[job.lease.job_id]
        self.running.pop(job.lease.job_id, None)
        self.open_jobs[job.lease.tenant_id].pop(job.lease.job_id, None)
