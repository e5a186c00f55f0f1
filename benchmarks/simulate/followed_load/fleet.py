"""A fleet of workers, event by event: jobs arrive, wait, run on one worker each, and may be lost with it.

A worker works on one job at a time: at sizes that fill a GPU, jobs that share steps take as long together
as one after another. Which of the idle workers gets a job is chance, as it is in the product.
"""

import heapq
import itertools
import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.simulate.followed_load.arrivals import MONDAY, Day, Job
from benchmarks.simulate.followed_load.policies import POLL_SECONDS, Policy, Seen
from diffuserve.jobs.policy.scaling import BUCKET_SECONDS, HOUR, bucket_of


@dataclass(frozen=True, kw_only=True)
class World:
    """World that a fleet lives in. Times are in seconds.

    A worker starts within `node_seconds` and loads its model in `load_seconds`. One that is stopped has
    `grace_seconds` to finish its job, and then is killed. One that is idle for `leave_seconds` may leave.
    Spot machines (all of them if `is_spot`) are taken away `losses_per_hour` times an hour, with
    `notice_seconds`; work of more than `checkpoint_seconds` goes on from a checkpoint then. The job of a
    machine that dies waits for its lease, and its pod is counted for `missed_seconds`: by Kubernetes'
    defaults 50 until the node is called unreachable, and 300 that pods tolerate that.
    """

    node_seconds: tuple[float, float] = (120.0, 300.0)
    load_seconds: float = 60.0
    grace_seconds: float = 660.0
    leave_seconds: float = 60.0
    is_spot: bool = False
    losses_per_hour: float = 0.2
    notice_seconds: float = 15.0
    checkpoint_seconds: float = 30.0
    lease_seconds: float = 30.0
    missed_seconds: float = 350.0
    first_workers: int = 2


@dataclass(frozen=True)
class Strike:
    """A machine that goes at a time: which one is a `share`, in 0…1, of the busy ones, or else of all."""

    at: float
    share: float
    has_notice: bool


@dataclass(eq=False)
class Worker:
    """A worker from the order of its machine to its end."""

    ordered_at: float
    ready_at: float
    job: Job | None = None
    began_at: float = 0.0
    ends_at: float = 0.0
    is_stopping: bool = False
    is_dead: bool = False
    gone_at: float | None = None
    idle_since: float = 0.0


@dataclass
class Outcome:
    """Outcome of a day. `lost_seconds` of work were done in vain; `taken` busy machines were taken away.

    `line` has the time of the day, the queued jobs and the workers, every five minutes. `strikes` are paired
    with the workers that they hit, and `again` counts the jobs that were begun once more.
    """

    waits: list[float] = field(default_factory=list)
    again: int = 0
    strikes: list[tuple[Strike, Worker]] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    done_at: float = 0.0
    device_seconds: float = 0.0
    killed: int = 0
    taken: int = 0
    lost_seconds: float = 0.0
    max_workers: int = 0
    line: list[tuple[float, int, int]] = field(default_factory=list)


class Fleet:
    """Plays one day."""

    def __init__(
        self, day: Day, policy: Policy, world: World, seed: int, strikes: Sequence[Strike] = ()
    ) -> None:
        self._day, self._policy, self._world, self._strikes = day, policy, world, strikes
        self._chance = random.Random(f"fleet {seed}")
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._queue: deque[Job] = deque()
        self._queued_seconds = 0.0
        self._accepted: dict[int, float] = defaultdict(float, day.history)
        self._workers: list[Worker] = []
        self._num_expected = len(day.jobs)  # to arrive, or to come back when a lease is over
        self.now = MONDAY
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Play until every job is done, and return what happened."""
        for _ in range(self._world.first_workers):
            self._start(MONDAY)
        for job in self._day.jobs:
            self._at(job.arrived_at, partial(self._arrive, job))
        for strike in self._strikes:
            self._at(strike.at, partial(self._strike, strike))
        self._at(MONDAY, self._poll)
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            act()
        for worker in list(self._workers):
            self._end(worker)
        assert len(self.outcome.waits) == len(self._day.jobs), "every job is done once, whatever is lost"
        return self.outcome

    def _at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), act))

    def _start(self, ready_at: float | None = None) -> None:
        if ready_at is None:
            ready_at = self.now + self._chance.uniform(*self._world.node_seconds) + self._world.load_seconds
        worker = Worker(self.now, ready_at, idle_since=ready_at)
        self._workers.append(worker)
        self.outcome.workers.append(worker)
        self._at(ready_at, self._assign)
        if self._world.is_spot:
            lifetime = self._chance.expovariate(self._world.losses_per_hour / HOUR)
            self._at(self.now + lifetime, partial(self._take_away, worker))

    def _arrive(self, job: Job) -> None:
        self._num_expected -= 1
        self._accepted[bucket_of(self.now)] += job.seconds
        self._enqueue(job)

    def _enqueue(self, job: Job, first: bool = False) -> None:
        (self._queue.appendleft if first else self._queue.append)(job)
        self._queued_seconds += job.seconds
        self._assign()

    def _assign(self) -> None:
        if not self._queue:
            return
        idle = [worker for worker in self._workers if self._is_idle(worker)]
        self._chance.shuffle(idle)
        for worker in idle[: len(self._queue)]:
            job = self._queue.popleft()
            self._queued_seconds -= job.seconds
            worker.job, worker.began_at, worker.ends_at = job, self.now, self.now + job.seconds
            self._at(worker.ends_at, partial(self._finish, worker, job))

    def _is_idle(self, worker: Worker) -> bool:
        is_well = not (worker.is_stopping or worker.is_dead)
        return worker.job is None and worker.ready_at <= self.now and is_well

    def _finish(self, worker: Worker, job: Job) -> None:
        if worker.job is not job:
            return  # it was lost meanwhile
        self.outcome.waits.append(worker.began_at - job.arrived_at)
        self.outcome.done_at = self.now
        worker.job, worker.idle_since = None, self.now
        if worker.is_stopping:
            self._end(worker)
        self._assign()

    def _poll(self) -> None:
        change = self._policy.change(self._seen())
        for _ in range(change):
            self._start()
        for worker in self._victims(-change):
            self._stop(worker, self._world.grace_seconds)
        self._let_leave()
        self._draw()
        if self._num_expected or self._queue or any(worker.job for worker in self._workers):
            self._at(self.now + POLL_SECONDS, self._poll)
        else:
            self._events.clear()

    def _seen(self) -> Seen:
        staying = [worker for worker in self._workers if not worker.is_stopping]
        busy = [worker for worker in staying if worker.job]
        return Seen(
            now=self.now,
            num_queued=len(self._queue),
            queued_seconds=max(self._queued_seconds, 0.0),
            running_seconds=sum(worker.ends_at - self.now for worker in busy),
            num_workers=len(staying),
            num_ready=sum(worker.ready_at <= self.now for worker in staying),
            num_busy=len(busy),
            accepted=self._accepted,
        )

    def _victims(self, number: int) -> list[Worker]:
        """Return pods as a ReplicaSet ends them: first those that are not ready, then any, busy or not."""
        staying = [worker for worker in self._workers if not worker.is_stopping]
        self._chance.shuffle(staying)
        return sorted(staying, key=lambda worker: worker.ready_at <= self.now)[: max(number, 0)]

    def _stop(self, worker: Worker, seconds: float) -> None:
        worker.is_stopping = True
        if worker.job is None:
            self._end(worker)
        else:
            self._at(self.now + seconds, partial(self._kill, worker))

    def _kill(self, worker: Worker) -> None:
        if worker.job is None:
            return
        self.outcome.killed += 1
        self.outcome.lost_seconds += self.now - worker.began_at
        self._lose(worker, worker.job)

    def _lose(self, worker: Worker, job: Job) -> None:
        worker.job = None
        self.outcome.again += 1
        self._end(worker)
        self._enqueue(job, first=True)

    def _strike(self, strike: Strike) -> None:
        """Take away a machine that has a job, or any that is there."""
        there = [each for each in self._workers if not (each.is_stopping or each.is_dead)]
        found = [each for each in there if each.job] or there
        if found:
            worker = found[min(int(strike.share * len(found)), len(found) - 1)]
            self.outcome.strikes.append((strike, worker))
            (self._take_away if strike.has_notice else self._die)(worker)

    def _die(self, worker: Worker) -> None:
        """End a machine without a word. Its job comes back after its lease, its pod is counted for longer."""
        worker.is_dead = True
        if (job := worker.job) is not None:
            worker.job = None
            self.outcome.lost_seconds += self.now - worker.began_at
            self.outcome.again += 1
            self._num_expected += 1
            self._at(self.now + self._world.lease_seconds, partial(self._come_back, job))
        self._at(self.now + self._world.missed_seconds, partial(self._end, worker))

    def _come_back(self, job: Job) -> None:
        self._num_expected -= 1
        self._enqueue(job, first=True)

    def _take_away(self, worker: Worker) -> None:
        """Give notice of the end of a spot machine."""
        if worker.gone_at is not None or worker.is_stopping:
            return
        worker.is_stopping = True
        if worker.job is None:
            self._end(worker)
        else:
            self._at(self.now + self._world.notice_seconds, partial(self._interrupt, worker))

    def _interrupt(self, worker: Worker) -> None:
        if (job := worker.job) is None:
            return
        self.outcome.taken += 1
        done = self.now - worker.began_at
        if job.seconds < self._world.checkpoint_seconds:
            self.outcome.lost_seconds += done
            self._lose(worker, job)
        else:
            self._lose(worker, Job(job.arrived_at, job.seconds - done))

    def _let_leave(self) -> None:
        long_ago = self.now - self._world.leave_seconds
        for worker in list(self._workers):
            is_surplus = self._is_idle(worker) and worker.idle_since <= long_ago
            if is_surplus and self._policy.may_leave(self._seen()):
                worker.is_stopping = True
                self._end(worker)

    def _end(self, worker: Worker) -> None:
        worker.gone_at = self.now
        self.outcome.device_seconds += self.now - worker.ordered_at
        self._workers = [each for each in self._workers if each is not worker]

    def _draw(self) -> None:
        self.outcome.max_workers = max(self.outcome.max_workers, len(self._workers))
        at = self.now - MONDAY
        if at % BUCKET_SECONDS == 0:
            self.outcome.line.append((at, len(self._queue), len(self._workers)))
