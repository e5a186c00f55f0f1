"""What first responses say of waits, on a real store with workers that take real time."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import pytest

from diffuserve.domain.errors import DeadlineUnreachable
from diffuserve.domain.jobs.job import Band, Job, JobStatus, NewJob, QueueEstimate
from diffuserve.domain.workers.worker import Lease
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from support.store_driver import add_worker, claim, complete, new_job

pytestmark = pytest.mark.slow

_NUM_WORKERS, _NUM_SLOTS = 2, 2
_NUM_JOBS = 60
_COSTS = (0.1, 0.2, 0.6)
_MEAN = sum(_COSTS) / len(_COSTS)
_ERROR = 0.2
"""Standard deviation of the logarithm of actual over predicted seconds."""
_TICK = 0.02


@dataclass
class SharingWorker:
    """Divides its time evenly among the jobs that it holds, as an engine that steps them together."""

    store: JobStore
    chance: random.Random
    ended: dict[str, float]
    started: dict[str, float]
    held: dict[str, tuple[Lease, float]] = field(default_factory=dict)

    async def work(self) -> None:
        worker, clock = await add_worker(self.store), asyncio.get_running_loop().time
        last = clock()
        while True:
            await asyncio.sleep(_TICK)
            seconds, last = clock() - last, clock()
            await self._step(seconds)
            if len(self.held) < _NUM_SLOTS:
                for lease in await claim(self.store, worker, num_jobs=_NUM_SLOTS - len(self.held)):
                    job = await self.store.jobs.get(lease.job_id)
                    self.started[lease.job_id] = clock()
                    actual = job.cost_seconds * self.chance.lognormvariate(0, _ERROR)
                    self.held[lease.job_id] = (lease, actual)

    async def _step(self, seconds: float) -> None:
        share = seconds / max(len(self.held), 1)
        self.held = {job_id: (lease, left - share) for job_id, (lease, left) in self.held.items()}
        for job_id, (lease, left) in list(self.held.items()):
            if left <= 0:
                self.ended[job_id] = asyncio.get_running_loop().time()
                del self.held[job_id]
                await complete(self.store, lease)


@dataclass(frozen=True)
class Place:
    """The store, and when its jobs started and ended."""

    store: JobStore
    started: dict[str, float]
    ended: dict[str, float]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    config = StoreConfig(default_plan="pro", heartbeat_seconds=200.0, lease_seconds=600.0)
    store = JobStore(f"sqlite:///{tmp_path}/jobs.db", MemoryEventBus(), config)
    await store.open()
    place = Place(store, {}, {})
    chance = random.Random("workers")
    working = [
        asyncio.create_task(SharingWorker(store, chance, place.ended, place.started).work())
        for _ in range(_NUM_WORKERS)
    ]
    while len(await store.operations.workers()) < _NUM_WORKERS:
        await asyncio.sleep(_TICK)
    yield place
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    await store.close()


@dataclass(frozen=True)
class Told:
    """What a job was told when it was submitted, and its seconds from then."""

    estimate: QueueEstimate
    start: float
    end: float

    @property
    def low(self) -> float:
        assert self.estimate.eta_s_low is not None
        return self.estimate.eta_s_low

    @property
    def high(self) -> float:
        assert self.estimate.eta_s_high is not None
        return self.estimate.eta_s_high


def job(chance: random.Random, band: Band = Band.STANDARD) -> NewJob:
    tenant = chance.choice(("ada", "bob"))
    return new_job(tenant, cost_seconds=chance.choice(_COSTS), band=band)


async def told_in(place: Place, load: Sequence[tuple[float, NewJob]]) -> list[Told]:
    """Submit the jobs when they are due, ask at once, and wait for all."""
    clock = asyncio.get_running_loop().time
    zero = clock()

    async def played(due: float, new: NewJob) -> tuple[Job, float, QueueEstimate | None]:
        await asyncio.sleep(zero + due - clock())
        submitted = await place.store.jobs.submit(new)
        return submitted, clock(), await place.store.jobs.estimate(submitted)

    found = await asyncio.gather(*(played(*each) for each in load))
    while len(place.ended) < len(load):
        await asyncio.sleep(_TICK)
    return [
        Told(estimate, place.started[job.id] - at, place.ended[job.id] - at)
        for job, at, estimate in found
        if estimate is not None
    ]


def check(told: Sequence[Told]) -> None:
    """Four in five start and end inside, and the range tells something."""
    assert len(told) > _NUM_JOBS / 2
    assert sum(each.low <= each.end <= each.high for each in told) >= 0.8 * len(told)
    assert sum(each.start <= each.high for each in told) >= 0.8 * len(told)
    wait = sorted(each.end for each in told)[len(told) // 2]
    width = sorted(each.high - each.low for each in told)[len(told) // 2]
    assert width <= 3 * wait


async def test_a_burst(place: Place) -> None:
    chance = random.Random("burst")
    check(await told_in(place, [(0.0, job(chance)) for _ in range(_NUM_JOBS)]))


@pytest.mark.parametrize("bands", [(Band.STANDARD,), tuple(Band)], ids=["one band", "three bands"])
async def test_arrivals_at_random(place: Place, bands: tuple[Band, ...]) -> None:
    chance = random.Random(f"{bands}")
    gaps = [chance.expovariate(0.85 * _NUM_WORKERS / _MEAN) for _ in range(_NUM_JOBS)]
    dues = list(accumulate(gaps))
    check(await told_in(place, [(due, job(chance, chance.choice(bands))) for due in dues]))


async def test_deadlines_that_are_accepted_are_met(place: Place) -> None:
    chance, accepted = random.Random("deadlines"), list[Job]()
    for _ in range(3):
        for _ in range(_NUM_JOBS):
            new = new_job(cost_seconds=chance.choice(_COSTS), finish_in=6.0)
            with suppress(DeadlineUnreachable):
                accepted.append(await place.store.jobs.submit_in_time(new))
        await asyncio.sleep(1.5)
    statuses = [JobStatus.QUEUED]
    while not all(status.is_final for status in statuses):
        await asyncio.sleep(0.2)
        statuses = [(await place.store.jobs.get(each.id)).status for each in accepted]
    assert len(accepted) >= 20
    assert statuses.count(JobStatus.EXPIRED) <= len(accepted) / 20
