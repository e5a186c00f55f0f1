"""A simulated fleet of on-demand and spot workers that claim with the product's own policy.

What is simulated: jobs that arrive at random, claims by `diffuserve.jobs.policy.fairness.choose_lane` with
its placement, notices, checkpoints, replacements. A worker runs one job at a time.
"""

import functools
import heapq
import itertools
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from diffuserve.domain.jobs.job import Band
from diffuserve.domain.tenant import Plan, Tenant
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.fairness import Claimant, choose_lane, seconds_left
from diffuserve.jobs.policy.lanes import Lane, TenantAccount
from diffuserve.jobs.policy.placement import ANYWHERE, ClaimingWorker

MODEL = "flux"
_TENANTS = ("ada", "bob", "cid")
_PLAN = Plan(name="simulated", max_running=1_000, max_queued=1_000_000)
_BOTH = frozenset({(MODEL, False)})


@dataclass(frozen=True)
class World:
    """Assumptions about machines and jobs; times in seconds.

    A replacement is paid from its request on, and ready after `boot_seconds` and `load_seconds`. What ends
    within `finish_seconds` of a notice is delivered; jobs of `checkpoint_seconds` and more are handed back
    after `preempt_seconds` more with what is done of them, and cost `resume_seconds` elsewhere.
    """

    image_seconds: float = 2.57
    interruption_seconds: float = 1_800.0
    notice_seconds: float = 30.0
    boot_seconds: tuple[float, float] = (120.0, 300.0)
    load_seconds: float = 60.0
    finish_seconds: float = 5.0
    preempt_seconds: float = 3.0
    resume_seconds: float = 2.0
    checkpoint_seconds: float = 30.0
    poll_seconds: float = 1.0


@dataclass(order=True)
class SimulatedJob:
    """A job, ordered by its place in its lane; `left_seconds` of work remain."""

    seq: int
    band: Band = field(compare=False)
    tenant: str = field(compare=False)
    images: int = field(compare=False)
    arrives_at: float = field(compare=False)
    cost_seconds: float = field(compare=False)
    left_seconds: float = field(compare=False)


@dataclass
class SimulatedWorker:
    """A worker; `began_at` and `job` tell what it runs, and one that is `leaving` claims no more."""

    is_spot: bool
    requested_at: float
    job: SimulatedJob | None = None
    began_at: float = 0.0
    is_leaving: bool = False
    looks_again: bool = False


@dataclass(frozen=True)
class Mix:
    """Share of the jobs that are of a band, and the images that they have, each number as often."""

    band: Band
    share: float
    images: tuple[int, ...]


JOBS = (
    Mix(Band.INTERACTIVE, 0.5, (1,)),
    Mix(Band.STANDARD, 0.3, (1, 2, 4)),
    Mix(Band.BATCH, 0.2, (4, 16, 64)),
)


def arrivals(world: World, machines: int, load: float, seconds: float, seed: int) -> list[SimulatedJob]:
    """Return jobs that arrive at random, at `load` times what so many machines can do."""
    dice = Random(seed)
    mean_images = sum(mix.share * sum(mix.images) / len(mix.images) for mix in JOBS)
    rate = load * machines / (mean_images * world.image_seconds)
    jobs: list[SimulatedJob] = []
    now = dice.expovariate(rate)
    while now < seconds:
        [mix] = dice.choices(JOBS, [mix.share for mix in JOBS])
        images = dice.choice(mix.images)
        cost = images * world.image_seconds
        jobs.append(SimulatedJob(len(jobs), mix.band, dice.choice(_TENANTS), images, now, cost, cost))
        now += dice.expovariate(rate)
    return jobs


class Fleet:
    """Plays jobs on `on_demand` and `spot` machines until `seconds` are over and all jobs are done.

    With `is_placed` the claims follow the placement of `config`; else any worker takes any job.
    """

    def __init__(
        self, world: World, on_demand: int, spot: int, config: StoreConfig, is_placed: bool, seed: int
    ) -> None:
        self.world, self.config, self.now = world, config, 0.0
        self.is_placed = is_placed and min(on_demand, spot) > 0
        self.latencies: dict[Band, list[float]] = defaultdict(list)
        self.finished: list[tuple[float, int]] = []
        self.machine_spans: list[tuple[bool, float, float]] = []
        self.num_interrupted = 0
        self.lost_seconds = 0.0
        self._dice = Random(seed + 1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._waiting: dict[tuple[Band, str], list[SimulatedJob]] = defaultdict(list)
        self._accounts = {name: TenantAccount(Tenant(name, _PLAN), 0.0, 0) for name in _TENANTS}
        self._workers: list[SimulatedWorker] = []
        for _ in range(on_demand):
            self._start(None, requested_at=0.0)
        for number in range(spot):  # each fares alike, whatever is beside it
            self._start(Random(f"{seed}-{number}"), requested_at=0.0)

    def play(self, jobs: Sequence[SimulatedJob], seconds: float) -> None:
        """Play the jobs; interruptions end with the arrivals."""
        self._seconds = seconds
        for job in jobs:
            self._at(job.arrives_at, functools.partial(self._queue, job))
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.machine_spans += [(worker.is_spot, worker.requested_at, seconds) for worker in self._workers]

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), event))

    def _start(self, fate: Random | None, requested_at: float) -> None:
        """Start a worker; on a spot machine its `fate` says when that is taken away."""
        worker = SimulatedWorker(fate is not None, requested_at)
        self._workers.append(worker)
        if fate is not None:
            lifetime = fate.expovariate(1 / self.world.interruption_seconds)
            self._at(self.now + lifetime, lambda: self._notice(worker, fate))
        self._claim(worker)

    def _queue(self, job: SimulatedJob) -> None:
        insort(self._waiting[job.band, job.tenant], job)
        idle = [worker for worker in self._workers if worker.job is None]
        for worker in self._dice.sample(idle, len(idle)):  # all are woken; who is first is chance
            self._claim(worker)

    def _claim(self, worker: SimulatedWorker) -> None:
        if worker.is_leaving or worker.job is not None:
            return
        lane = choose_lane(self._lanes(), self._claimant(worker), self.now, self.config)
        if lane is not None:
            self._run(worker, self._waiting[lane.band, lane.account.tenant.id].pop(0))
        elif not worker.looks_again and any(self._waiting.values()):
            worker.looks_again = True
            self._at(self.now + self._pause(worker), lambda: self._look_again(worker))

    def _pause(self, worker: SimulatedWorker) -> float:
        """Return the seconds until a worker asks again, which the control plane knows if it leaves a job."""
        left = seconds_left(self._lanes(), self._claimant(worker), self.now, self.config)
        return self.world.poll_seconds if left is None else min(self.world.poll_seconds, left)

    def _look_again(self, worker: SimulatedWorker) -> None:
        worker.looks_again = False
        self._claim(worker)

    def _lanes(self) -> list[Lane]:
        return [
            Lane(
                f"{band}|{tenant}",
                band,
                self._accounts[tenant],
                MODEL,
                head.seq,
                head.arrives_at,
                head.arrives_at,
            )
            for (band, tenant), [head, *_] in ((key, jobs[:1]) for key, jobs in self._waiting.items() if jobs)
        ]

    def _claimant(self, worker: SimulatedWorker) -> Claimant:
        placement = ClaimingWorker(worker.is_spot, _BOTH) if self.is_placed else ANYWHERE
        return Claimant({MODEL}, {MODEL}, placement=placement)

    def _run(self, worker: SimulatedWorker, job: SimulatedJob) -> None:
        self._accounts[job.tenant].charge(job.cost_seconds)
        worker.job, worker.began_at = job, self.now
        self._at(self.now + job.left_seconds, lambda: self._finish(worker, job))

    def _finish(self, worker: SimulatedWorker, job: SimulatedJob) -> None:
        if worker.job is not job:
            return  # it was put down
        worker.job = None
        self._accounts[job.tenant].num_running -= 1
        self.latencies[job.band].append(self.now - job.arrives_at)
        self.finished.append((self.now, job.images))
        self._claim(worker)

    def _notice(self, worker: SimulatedWorker, fate: Random) -> None:
        if self.now >= self._seconds:
            return
        world, worker.is_leaving = self.world, True
        self._workers.remove(worker)
        self.machine_spans.append((True, worker.requested_at, self.now + world.notice_seconds))
        requested_at = self.now
        ready_in = fate.uniform(*world.boot_seconds) + world.load_seconds
        self._at(self.now + ready_in, lambda: self._start(fate, requested_at))
        self._at(self.now + world.finish_seconds, lambda: self._preempt(worker))

    def _preempt(self, worker: SimulatedWorker) -> None:
        job, worker.job = worker.job, None
        if job is None:
            return
        self.num_interrupted += 1
        account, done = self._accounts[job.tenant], self.now - worker.began_at
        account.num_running -= 1
        account.vtime -= job.cost_seconds / _PLAN.weight
        if job.cost_seconds < self.world.checkpoint_seconds:
            self.lost_seconds += done
            self._queue(job)
            return
        self.lost_seconds += self.world.resume_seconds
        job.left_seconds += self.world.resume_seconds - done
        self._at(self.now + self.world.preempt_seconds, lambda: self._queue(job))
