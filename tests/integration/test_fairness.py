"""Fair shares over simulated hours: the real store, a clock that is moved, and workers that only count."""

import asyncio
import heapq
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.job import JobResult
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.tenant import Plan, Role
from diffuserve.domain.workers.worker import Completion, Lease
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.pricing import predict
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.clips import CLIPS
from support.store_driver import add_worker, new_job

_HOURS = 3_600.0
_FIT = CostFit(encode=(0.01, 0.0), step=(0.0, 1e-3, 1e-5, 0.0), decode=(0.0, 1e-6))


@dataclass
class Simulation:
    """Workers that run one job at a time, each for exactly its predicted seconds."""

    store: JobStore
    clock: FakeClock
    workers: list[str]
    finished_work: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    num_switches: int = 0

    async def run(self, seconds: float) -> None:
        end = self.clock.now + seconds
        resident: dict[str, str] = {}
        events: list[tuple[float, int, str, Lease | None]] = [
            (self.clock.now, i, worker, None) for i, worker in enumerate(self.workers)
        ]
        while events and events[0][0] < end:
            now, index, worker, lease = heapq.heappop(events)
            self.clock.now = max(now, self.clock.now)
            if lease is not None:
                await self._complete(lease)
            lease = await self._claim(worker, f"{now}-{index}", resident.get(worker))
            if lease is not None:
                self.num_switches += resident.get(worker) != lease.model
                resident[worker] = lease.model
                heapq.heappush(events, (now + lease.cost_seconds, index, worker, lease))

    async def _claim(self, worker: str, claim_id: str, resident: str | None) -> Lease | None:
        models = () if resident is None else (resident,)
        claim = Claim(claim_id=claim_id, num_jobs=1, resident_models=models)
        leases = await self.store.leases.claim(worker, claim)
        for lease in leases:
            job = await self.store.jobs.get(lease.job_id)
            self.waits[job.tenant_id].append(self.clock.now - job.created_at)
        return leases[0] if leases else None

    async def _complete(self, lease: Lease) -> None:
        done = Completion(
            lease_token=lease.lease_token, result=JobResult(), actual_seconds=lease.cost_seconds
        )
        await self.store.leases.complete(lease.job_id, done)
        self.finished_work[(await self.store.jobs.get(lease.job_id)).tenant_id] += lease.cost_seconds


PLANS = {
    name: Plan(name=name, weight=weight, max_running=1_000, max_queued=100_000)
    for name, weight in (("light", 1.0), ("medium", 2.0), ("heavy", 4.0))
}


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncGenerator[JobStore]:
    config = StoreConfig(
        plans=PLANS, default_plan="light", lease_seconds=_HOURS * 10, max_backlog_seconds=1e9
    )
    store = JobStore(f"sqlite:///{tmp_path}/jobs.db", MemoryEventBus(), config, clock)
    await store.open()
    yield store
    await store.close()


async def _submit(store: JobStore, tenant: str, costs: Sequence[float], models: Sequence[str]) -> None:
    jobs = [new_job(tenant, cost_seconds=cost, model=models[i % len(models)]) for i, cost in enumerate(costs)]
    await asyncio.gather(*(store.jobs.submit(job) for job in jobs))


async def _mean_wait_of_light(store: JobStore, clock: FakeClock) -> float:
    simulation = Simulation(store, clock, [await add_worker(store)])
    await simulation.run(3_000.0)
    waits = simulation.waits["light"]
    assert len(waits) == 10
    return sum(waits) / len(waits)


async def test_a_heavy_tenant_does_not_delay_a_light_one(
    tmp_path: Path, clock: FakeClock, store: JobStore
) -> None:
    cost = 5.0
    await _submit(store, "heavy", [cost] * 60, ["tiny"])
    clock.advance(1.0)
    await _submit(store, "light", [cost] * 10, ["tiny"])
    beside = await _mean_wait_of_light(store, clock)

    alone_clock = FakeClock()
    alone_store = JobStore(f"sqlite:///{tmp_path}/alone.db", MemoryEventBus(), store.config, alone_clock)
    await alone_store.open()
    await _submit(alone_store, "light", [cost] * 10, ["tiny"])
    alone = await _mean_wait_of_light(alone_store, alone_clock)
    await alone_store.close()
    assert beside <= 2 * alone + cost
    assert beside > alone, "the heavy tenant is served as well"


async def _image_waits(store: JobStore, clock: FakeClock, images: Sequence[float]) -> list[float]:
    simulation = Simulation(store, clock, [await add_worker(store)])
    await simulation.run(_HOURS)
    assert len(simulation.waits["light"]) == len(images)
    return simulation.waits["light"]


@pytest.mark.parametrize("seed", range(3))
async def test_a_flood_of_clips_delays_each_image_by_the_work_before_it_and_one_clip(
    tmp_path: Path, clock: FakeClock, store: JobStore, seed: int
) -> None:
    """The bound of fair queueing, in predicted device-seconds: a clip that runs is not interrupted."""
    random = Random(seed)
    clips = [_price(num_frames=random.choice((17, 49, 81))) for _ in range(25)]
    images = [_price(num_frames=1, num_inference_steps=random.randint(1, 8)) for _ in range(20)]
    assert min(clips) > max(images)
    await _submit(store, "flood", clips, ["tiny"])
    clock.advance(1.0)
    await _submit(store, "light", images, ["tiny"])
    beside = await _image_waits(store, clock, images)

    alone_clock = FakeClock()
    alone_store = JobStore(f"sqlite:///{tmp_path}/alone.db", MemoryEventBus(), store.config, alone_clock)
    await alone_store.open()
    await _submit(alone_store, "light", images, ["tiny"])
    alone = await _image_waits(alone_store, alone_clock, images)
    await alone_store.close()
    for waited, wait_alone in zip(beside, alone, strict=True):
        assert waited <= 2 * wait_alone + max(clips)
    assert max(beside) >= min(clips), "the flood is served as well"


def _price(**values: Any) -> float:
    """Return the predicted device-seconds of a request for a model of clips."""
    params = CLIPS.resolve(GenerationParams(prompt="a ball", **values), seed=0)
    return predict(CLIPS, _FIT, params).cost_seconds


@pytest.mark.parametrize(
    "models",
    [
        pytest.param(["m0"], id="one-model", marks=pytest.mark.slow),
        pytest.param(["m0", "m1", "m2", "m3"], id="four-models"),
    ],
)
async def test_tenants_share_device_seconds_by_weight(
    store: JobStore, clock: FakeClock, models: list[str]
) -> None:
    """The tenants' jobs differ in length, so that shares counted in jobs would be far off."""
    num_workers, seconds = 4, 4_000.0
    for tenant, plan, cost in (("ada", "light", 4.0), ("bob", "medium", 20.0), ("cid", "heavy", 60.0)):
        await store.keys.create(Role.TENANT, tenant_id=tenant, plan=plan)
        more_than_its_share = 1.3 * PLANS[plan].weight / 7 * num_workers * seconds
        await _submit(store, tenant, [cost] * int(more_than_its_share / cost), models)
    workers = [await add_worker(store, *models) for _ in range(num_workers)]
    simulation = Simulation(store, clock, workers)
    await simulation.run(seconds)
    total = sum(simulation.finished_work.values())
    shares = {tenant: work / total for tenant, work in simulation.finished_work.items()}
    assert shares["ada"] == pytest.approx(1 / 7, rel=0.03)
    assert shares["bob"] == pytest.approx(2 / 7, rel=0.03)
    assert shares["cid"] == pytest.approx(4 / 7, rel=0.03)


async def test_affinity_saves_most_model_switches(store: JobStore, clock: FakeClock, tmp_path: Path) -> None:
    models = ["m0", "m1", "m2", "m3"]
    await _submit(store, "ada", [4.0] * 320, models)
    with_affinity = Simulation(store, clock, [await add_worker(store, *models) for _ in range(2)])
    await with_affinity.run(600.0)
    num_jobs = len(with_affinity.waits["ada"])
    assert with_affinity.num_switches < 0.15 * num_jobs, "in turn, every job would be a switch"
