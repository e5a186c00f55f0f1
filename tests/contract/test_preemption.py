"""Preemption: a batch job makes room for an interactive one, and loses nothing by it."""

from typing import Any

import pytest
import sqlalchemy as sa

from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.domain.jobs.job import Band, Job, JobStatus
from diffuserve.domain.workers.worker import Lease, ReleaseCause
from diffuserve.domain.workers.worker_ids import attempt_id
from diffuserve.events.base import worker_topic
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import schema
from diffuserve.jobs.store import JobStore
from diffuserve.jobs.tasks.housekeeping import Housekeeping
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import (
    add_worker,
    claim,
    claim_one,
    complete,
    events,
    new_job,
    release,
    send_heartbeat,
)


async def keep(store: JobStore, lease: Lease, step: int) -> None:
    stored = StoredCheckpoint(
        lease_token=lease.lease_token, slot=0, step=step, size_bytes=100, sha256="a" * 64
    )
    await store.leases.keep_checkpoint(lease.job_id, stored)


async def virtual_time(store: JobStore) -> float:
    rows = await store.database.rows(sa.select(schema.tenants.c.vtime).where(schema.tenants.c.id == "ada"))
    return float(rows[0].vtime)


async def test_a_preempted_job_returns_to_its_old_place_as_often_as_that_happens(
    job_store: JobStore,
) -> None:
    worker = await add_worker(job_store)
    job, other = [await job_store.jobs.submit(new_job(band=Band.BATCH)) for _ in range(2)]
    for _ in range(8):  # more often than any limit of retries
        assert (
            await release(job_store, await claim_one(job_store, worker), ReleaseCause.PREEMPTED) == "queued"
        )
    lease = await claim_one(job_store, worker)
    assert lease.job_id == job.id
    assert await complete(job_store, lease) == JobStatus.SUCCEEDED
    log = await job_store.jobs.events_after(job.id)
    assert [event.type for event in log if event.type != "running"] == [
        "queued",
        *["preempted"] * 8,
        "succeeded",
    ]
    assert [event.data for event in log if event.type == "preempted"] == [{"times": n} for n in range(1, 9)]
    assert await events(job_store, other) == ["queued"]


async def test_preempted_time_that_is_not_kept_is_charged_to_nobody(
    job_store: JobStore, clock: FakeClock
) -> None:
    worker = await add_worker(job_store)
    await job_store.jobs.submit(new_job("ada", cost_seconds=100.0))
    before = await virtual_time(job_store)
    for _ in range(3):
        lease = await claim_one(job_store, worker)
        assert await virtual_time(job_store) > before
        await release(job_store, lease, ReleaseCause.PREEMPTED)
        assert await virtual_time(job_store) == pytest.approx(before)
    lease = await claim_one(job_store, worker)
    clock.advance(90.0)
    await complete(job_store, lease, seconds=90.0)
    weight = (await job_store.operations.tenant("ada")).plan.weight
    assert await virtual_time(job_store) == pytest.approx(before + 90.0 / weight)


BATCH = {"band": Band.BATCH, "cost_seconds": 100.0}
NO_ROOM = 0.6  # longer than `preempt_after_seconds`


async def full_worker(store: JobStore, num_jobs: int = 1, **values: Any) -> tuple[str, list[Lease]]:
    """Register a worker, and have it claim batch jobs until it is full."""
    worker = await add_worker(store, **values)
    for _ in range(num_jobs):
        await store.jobs.submit(new_job("flood", **BATCH))
    return worker, await claim(store, worker, num_jobs=num_jobs)


async def waiting(store: JobStore, clock: FakeClock, seconds: float = NO_ROOM, **values: Any) -> Job:
    """Submit an interactive job, and let time pass."""
    job = await store.jobs.submit(new_job("ada", band=Band.INTERACTIVE, **values))
    clock.advance(seconds)
    return job


async def told(store: JobStore, *workers: str) -> list[str]:
    """Look once for urgent jobs, and return what these workers are told to put down, now and before."""
    await store.housekeeping.make_room()
    commands = [await store.leases.control_commands(worker) for worker in workers]
    return [attempt.rpartition("-")[0] for each in commands for attempt in each.preempt]


async def test_a_batch_job_makes_room_for_an_interactive_one_that_no_worker_has_room_for(
    job_store: JobStore, clock: FakeClock, bus: MemoryEventBus
) -> None:
    worker, (lease,) = await full_worker(job_store)
    await keep(job_store, lease, step=40)
    urgent = await waiting(job_store, clock)
    with bus.subscribe(worker_topic(worker)) as messages:
        assert await told(job_store, worker) == [lease.job_id]
        assert await messages.get(0.0) == {"type": "preempt", "job_id": lease.job_id}
    assert (await send_heartbeat(job_store, worker, lease)).preempt == (attempt_id(lease.job_id, 1),)
    assert (await job_store.leases.all_control_commands())[worker].preempt == (attempt_id(lease.job_id, 1),)
    await release(job_store, lease, ReleaseCause.PREEMPTED)
    assert (await claim_one(job_store, worker)).job_id == urgent.id
    again = await claim_one(job_store, worker)
    assert again.job_id == lease.job_id
    assert again.checkpoint is not None


async def test_it_is_told_only_after_the_setting_and_never_at_zero(
    job_store: JobStore, clock: FakeClock
) -> None:
    worker, _ = await full_worker(job_store)
    assert await job_store.housekeeping.make_room() is None
    await waiting(job_store, clock, seconds=0.4)
    assert await job_store.housekeeping.make_room() == pytest.approx(0.1)
    assert await told(job_store, worker) == []
    clock.advance(0.2)
    off = Housekeeping(job_store.database, job_store._writer, StoreConfig(preempt_after_seconds=0.0))
    assert await off.make_room() is None
    assert await told(job_store, worker) != []


@pytest.mark.parametrize("band", [Band.STANDARD, Band.BATCH])
async def test_only_interactive_jobs_have_room_made(
    job_store: JobStore, clock: FakeClock, band: Band
) -> None:
    worker, _ = await full_worker(job_store)
    await job_store.jobs.submit(new_job("ada", band=band))
    clock.advance(50.0)
    assert await told(job_store, worker) == []


async def test_only_batch_jobs_make_room(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    for band in (Band.STANDARD, Band.INTERACTIVE):
        await job_store.jobs.submit(new_job(band=band, cost_seconds=100.0))
        await claim_one(job_store, worker)
    await waiting(job_store, clock)
    assert await told(job_store, worker) == []


async def test_no_two_jobs_make_room_for_one(job_store: JobStore, clock: FakeClock) -> None:
    worker, leases = await full_worker(job_store, num_jobs=3)
    await waiting(job_store, clock)
    first = await told(job_store, worker)
    assert len(first) == 1
    clock.advance(5.0)
    assert await told(job_store, worker) == first
    (lease,) = [lease for lease in leases if lease.job_id == first[0]]
    await release(job_store, lease, ReleaseCause.PREEMPTED)
    assert await told(job_store, worker) == [], "its room is there, and the claim is on its way"
    await waiting(job_store, clock)
    assert len(await told(job_store, worker)) == 1


async def test_each_waiting_job_gets_a_room_on_another_worker(job_store: JobStore, clock: FakeClock) -> None:
    workers = [(await full_worker(job_store, num_jobs=2))[0] for _ in range(3)]
    for _ in range(3):
        await waiting(job_store, clock, seconds=0.0)
    clock.advance(NO_ROOM)
    await job_store.housekeeping.make_room()
    assert [len(await told(job_store, worker)) for worker in workers] == [1, 1, 1]


async def test_one_that_finishes_meanwhile_has_made_its_room(job_store: JobStore, clock: FakeClock) -> None:
    worker, (lease, other) = await full_worker(job_store, num_jobs=2)
    urgent = await waiting(job_store, clock)
    told_first = await told(job_store, worker)
    ended = lease if lease.job_id in told_first else other
    assert await complete(job_store, ended) == JobStatus.SUCCEEDED
    assert await told(job_store, worker) == []
    assert (await claim_one(job_store, worker)).job_id == urgent.id
    assert "preempted" not in await events(job_store, await job_store.jobs.get(ended.job_id))


async def test_a_room_that_is_not_needed_any_more_serves_the_next(
    job_store: JobStore, clock: FakeClock
) -> None:
    """The job was claimed by another worker meanwhile."""
    worker, _ = await full_worker(job_store, num_jobs=2)
    urgent = await waiting(job_store, clock)
    first = await told(job_store, worker)
    assert (await claim_one(job_store, await add_worker(job_store))).job_id == urgent.id
    await waiting(job_store, clock)
    assert await told(job_store, worker) == first


async def test_a_worker_that_is_lost_makes_no_room_and_another_one_does(
    job_store: JobStore, clock: FakeClock
) -> None:
    held = dict([await full_worker(job_store), await full_worker(job_store)])
    await waiting(job_store, clock)
    (first,) = await told(job_store, *held)
    (lost,) = [worker for worker, (lease,) in held.items() if lease.job_id == first]
    (other,) = held.keys() - {lost}
    for _ in range(4):
        clock.advance(8.0)
        await send_heartbeat(job_store, other, *held[other])
    assert await told(job_store, other) == [held[other][0].job_id]


async def test_a_job_makes_room_a_few_times_at_most(job_store: JobStore, clock: FakeClock) -> None:
    worker, (lease,) = await full_worker(job_store)
    for _ in range(job_store.config.max_preemptions):
        await waiting(job_store, clock)
        assert await told(job_store, worker) == [lease.job_id]
        await release(job_store, lease, ReleaseCause.PREEMPTED)
        await complete(job_store, await claim_one(job_store, worker))
        lease = await claim_one(job_store, worker)
    await waiting(job_store, clock)
    assert await told(job_store, worker) == []


async def test_a_tenant_at_its_limit_has_no_room_made(job_store: JobStore, clock: FakeClock) -> None:
    worker, _ = await full_worker(job_store, num_jobs=2)
    limit = (await job_store.operations.tenant("ada")).plan.max_running
    for _ in range(limit):
        await job_store.jobs.submit(new_job("ada", band=Band.INTERACTIVE))
    await claim(job_store, worker, num_jobs=limit)
    await waiting(job_store, clock)
    assert await told(job_store, worker) == []


async def test_a_room_that_would_go_to_a_job_of_that_age_is_not_made(
    job_store: JobStore, clock: FakeClock
) -> None:
    """Batch jobs that have waited for two minutes are served as interactive ones, by their tenant's turn."""
    worker, _ = await full_worker(job_store)
    await job_store.jobs.submit(new_job("ada", **BATCH))
    clock.advance(130.0)
    await send_heartbeat(job_store, worker)
    await waiting(job_store, clock)
    assert await told(job_store, worker) == []


async def test_a_canceled_job_is_canceled_and_not_put_down(job_store: JobStore, clock: FakeClock) -> None:
    worker, (lease,) = await full_worker(job_store)
    await waiting(job_store, clock)
    assert await told(job_store, worker) == [lease.job_id]
    await job_store.jobs.cancel(lease.job_id)
    assert await told(job_store, worker) == []
    assert await release(job_store, lease, ReleaseCause.PREEMPTED) == JobStatus.CANCELED
