"""A queue and its workers in simulated time: the real choice of lanes, without a database or engines."""

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from diffuserve.domain.jobs.job import Band, Job, JobStatus
from diffuserve.domain.tenant import Plan, Tenant
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.estimate import LaneSize, RunningWork, TenantStanding, WorkAhead
from diffuserve.jobs.policy.fairness import Claimant, choose_lane
from diffuserve.jobs.policy.lanes import Lane, TenantAccount

MODEL = "tiny"
_WEIGHTS = {"ada": 1.0, "bob": 1.0, "cyd": 4.0, "dan": 1.0, "eve": 2.0}
_ACTIVITY = (5, 2, 2, 1, 1)
_COSTS, _COST_SHARES = (0.2, 0.5, 1.0, 2.0, 5.0, 30.0), (30, 25, 20, 15, 8, 2)
_BAND_SHARES = (25, 55, 20)
_BURST_SHARE, _BURST_SIZES = 0.1, (5, 25)
_MEAN_ARRIVALS = 1 - _BURST_SHARE + _BURST_SHARE * sum(_BURST_SIZES) / 2
_ERROR = 0.25  # standard deviation of the logarithm of actual over predicted seconds


@dataclass
class SimulatedJob:
    """A job, the device-seconds that it really takes, and when it came, started and ended."""

    job: Job
    actual_seconds: float
    arrived_at: float
    started_at: float = math.nan
    ended_at: float = math.nan
    remaining: float = 0.0


@dataclass
class SimulatedWorker:
    """A worker of constant speed that divides it evenly among the jobs that it holds."""

    num_slots: int
    held: list[SimulatedJob] = field(default_factory=list)

    @property
    def has_room(self) -> bool:
        return len(self.held) < self.num_slots

    def hold(self, job: SimulatedJob) -> None:
        """Start a job."""
        job.remaining = job.actual_seconds
        self.held.append(job)

    @property
    def next_end(self) -> float:
        """Seconds until the first of its jobs ends."""
        return min(job.remaining * len(self.held) for job in self.held) if self.held else math.inf

    def work(self, seconds: float) -> list[SimulatedJob]:
        """Work for so long, and return the jobs that are done."""
        for job in self.held:
            job.remaining -= seconds / len(self.held)
        done = [job for job in self.held if job.remaining <= 1e-9]
        self.held = [job for job in self.held if job.remaining > 1e-9]
        return done


def sharing_workers(num_workers: int, num_slots: int) -> list[SimulatedWorker]:
    """Return workers that hold so many jobs each."""
    return [SimulatedWorker(num_slots) for _ in range(num_workers)]


def draw_jobs(rng: random.Random, num_jobs: int, work_per_second: float) -> list[SimulatedJob]:
    """Return jobs of five tenants, three bands and mixed costs; one arrival in ten is a burst.

    They arrive as a Poisson process that brings so many device-seconds per second.
    """
    mean_cost = sum(map(math.prod, zip(_COSTS, _COST_SHARES, strict=True))) / sum(_COST_SHARES)
    drawn: list[SimulatedJob] = []
    now = 0.0
    while len(drawn) < num_jobs:
        now += rng.expovariate(work_per_second / (mean_cost * _MEAN_ARRIVALS))
        tenant_id = rng.choices(list(_WEIGHTS), _ACTIVITY)[0]
        band = rng.choices(list(Band), _BAND_SHARES)[0]
        for _ in range(rng.randint(*_BURST_SIZES) if rng.random() < _BURST_SHARE else 1):
            drawn.append(_draw_job(rng, len(drawn), tenant_id, band, now))
    return drawn[:num_jobs]


def _draw_job(rng: random.Random, number: int, tenant_id: str, band: Band, now: float) -> SimulatedJob:
    cost = rng.choices(_COSTS, _COST_SHARES)[0]
    return new_simulated_job(number, tenant_id, band, now, cost, cost * math.exp(rng.gauss(0, _ERROR)))


def new_simulated_job(
    number: int, tenant_id: str, band: Band, now: float, cost: float, actual_seconds: float = math.nan
) -> SimulatedJob:
    """Return a job that arrives now; a worker that steps it by itself needs no actual seconds."""
    job = Job(
        id=f"job {number}",
        tenant_id=tenant_id,
        kind="image.generate",
        model=MODEL,
        status=JobStatus.QUEUED,
        band=band,
        input={},
        metadata={},
        cost_seconds=cost,
        step_tokens=1,
        attempt=0,
        lease_token=0,
        version=1,
        created_at=now,
        seq=number,
    )
    return SimulatedJob(job, actual_seconds, now)


class Worker(Protocol):
    """Runs the jobs that it holds."""

    held: list[SimulatedJob]

    @property
    def has_room(self) -> bool:
        """True if it may start another job."""

    @property
    def next_end(self) -> float:
        """Seconds for which nothing changes."""

    def hold(self, job: SimulatedJob) -> None:
        """Start a job."""

    def work(self, seconds: float) -> list[SimulatedJob]:
        """Work for so long, and return the jobs that are done."""


class SimulatedQueue:
    """Serves jobs to workers in the order of `choose_lane`; a tenant runs `max_running` jobs at a time."""

    def __init__(self, workers: Sequence[Worker], max_running: int = 8) -> None:
        self.now = 0.0
        self.workers = workers
        self._lanes: dict[tuple[str, Band], Lane] = {}
        self._waiting: dict[tuple[str, Band], list[SimulatedJob]] = defaultdict(list)
        self._floors: dict[Band, float] = defaultdict(float)
        self._accounts = {
            name: TenantAccount(
                Tenant(name, Plan(name="plan", weight=weight, max_running=max_running)), 0.0, 0
            )
            for name, weight in _WEIGHTS.items()
        }

    @property
    def standings(self) -> dict[str, TenantStanding]:
        """Standings of the tenants."""
        return {
            name: TenantStanding(_WEIGHTS[name], account.vtime, account.tenant.plan.max_running)
            for name, account in self._accounts.items()
        }

    @property
    def lane_sizes(self) -> list[LaneSize]:
        """Lanes that have jobs."""
        return [
            LaneSize(band, tenant_id, MODEL, len(jobs), sum(job.job.cost_seconds for job in jobs))
            for (tenant_id, band), jobs in self._waiting.items()
            if jobs
        ]

    def ahead_of(self, job: Job) -> WorkAhead:
        """Return the work ahead of a queued job."""
        lane = self._waiting[job.tenant_id, job.band]
        earlier = [other.job.cost_seconds for other in lane if other.job.seq < job.seq]
        return WorkAhead(len(earlier), sum(earlier), self.running, len(self.workers))

    @property
    def running(self) -> RunningWork:
        """What the workers hold."""
        held = [job.job.cost_seconds for worker in self.workers for job in worker.held]
        return RunningWork(len(held), sum(held))

    def put(self, job: SimulatedJob) -> None:
        """Queue a job; a tenant that was idle begins at the floor of its band."""
        key = (job.job.tenant_id, job.job.band)
        account = self._accounts[job.job.tenant_id]
        if not any(self._waiting[job.job.tenant_id, band] for band in Band):
            account.vtime = max(account.vtime, self._floors[job.job.band])
        if not self._waiting[key]:
            self._lanes[key] = Lane(
                str(key), job.job.band, account, MODEL, job.job.seq, job.arrived_at, self.now
            )
        self._waiting[key].append(job)

    def claim(self) -> None:
        """Fill the workers, the emptiest first."""
        for worker in sorted(self.workers, key=lambda worker: len(worker.held)):
            while worker.has_room and (job := self._take()) is not None:
                job.started_at = self.now
                worker.hold(job)

    def run_until(self, end: float) -> None:
        """Work and claim until this time."""
        while True:
            seconds = min(min(worker.next_end for worker in self.workers), end - self.now)
            if not math.isfinite(seconds):
                return
            self.now += seconds
            for worker in self.workers:
                for job in worker.work(seconds):
                    self._settle(job)
            self.claim()
            if self.now >= end:
                return

    def _take(self) -> SimulatedJob | None:
        lanes = [self._lanes[key] for key, jobs in self._waiting.items() if jobs]
        lane = choose_lane(lanes, Claimant({MODEL}, {MODEL}), self.now, StoreConfig())
        if lane is None:
            return None
        jobs = self._waiting[lane.account.tenant.id, lane.band]
        job = jobs.pop(0)
        self._floors[lane.band] = max(self._floors[lane.band], lane.account.vtime)
        lane.account.charge(job.job.cost_seconds)
        if jobs:
            lane.head_seq, lane.head_at, lane.head_since = jobs[0].job.seq, jobs[0].arrived_at, self.now
        return job

    def _settle(self, job: SimulatedJob) -> None:
        job.ended_at = self.now
        account = self._accounts[job.job.tenant_id]
        account.num_running -= 1
        account.vtime += (job.actual_seconds - job.job.cost_seconds) / account.tenant.plan.weight
