"""Spot workers and workers on demand share one queue, on SQLite and PostgreSQL."""

import pytest

from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.job import Band, JobStatus
from diffuserve.domain.workers.worker import ReleaseCause, WorkerRole
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import add_worker, claim, claim_one, events, new_job, release, send_heartbeat


async def ids(store: JobStore, worker: str, num_jobs: int = 4) -> list[str]:
    return [lease.job_id for lease in await claim(store, worker, num_jobs=num_jobs)]


async def test_each_kind_of_worker_takes_what_suits_it_first(job_store: JobStore, clock: FakeClock) -> None:
    spot, on_demand = await add_worker(job_store, is_spot=True), await add_worker(job_store)
    batch = await job_store.jobs.submit(new_job(band=Band.BATCH))
    interactive = await job_store.jobs.submit(new_job(band=Band.INTERACTIVE))
    assert await ids(job_store, spot, 1) == [batch.id]
    assert await ids(job_store, spot) == []
    assert await ids(job_store, on_demand) == [interactive.id]


@pytest.mark.parametrize(
    ("band", "is_spot", "seconds"), [(Band.INTERACTIVE, True, 0.2), (Band.BATCH, False, 60.0)]
)
async def test_what_waits_for_the_other_kind_does_so_for_a_bounded_time(
    job_store: JobStore, clock: FakeClock, band: Band, is_spot: bool, seconds: float
) -> None:
    config = job_store.config
    assert seconds == (config.on_demand_wait_seconds if is_spot else config.spot_wait_seconds)
    worker, other = (
        await add_worker(job_store, is_spot=is_spot),
        await add_worker(job_store, is_spot=not is_spot),
    )
    jobs = [await job_store.jobs.submit(new_job(band=band)) for _ in range(2)]
    clock.advance(seconds - 0.05)
    await send_heartbeat(job_store, other)
    left = await job_store.leases.try_claim(worker, Claim(claim_id="left", num_jobs=4))
    assert left.leases == []
    assert left.seconds_left == pytest.approx(0.05)
    later = await job_store.jobs.submit(new_job(band=band))
    clock.advance(0.1)
    assert await ids(job_store, worker) == [job.id for job in jobs]
    assert await ids(job_store, other) == [later.id]


async def test_a_job_close_to_its_deadline_is_left_to_workers_on_demand(
    job_store: JobStore, clock: FakeClock
) -> None:
    spot, on_demand = await add_worker(job_store, is_spot=True), await add_worker(job_store)
    job = await job_store.jobs.submit(new_job(band=Band.BATCH, finish_in=20.0))
    assert await ids(job_store, spot) == []
    assert await ids(job_store, on_demand) == [job.id]


async def away(store: JobStore, clock: FakeClock, worker: str) -> None:
    clock.advance(store.config.lease_seconds + 1.0)


async def draining(store: JobStore, clock: FakeClock, worker: str) -> None:
    await store.leases.drain(worker)


async def gone(store: JobStore, clock: FakeClock, worker: str) -> None:
    await store.leases.deregister(worker)


@pytest.mark.parametrize("fate", [away, draining, gone])
@pytest.mark.parametrize(("band", "is_spot"), [(Band.INTERACTIVE, True), (Band.BATCH, False)])
async def test_nothing_waits_for_workers_that_will_not_come(
    job_store: JobStore, clock: FakeClock, fate: object, band: Band, is_spot: bool
) -> None:
    worker, other = (
        await add_worker(job_store, is_spot=is_spot),
        await add_worker(job_store, is_spot=not is_spot),
    )
    assert callable(fate)
    await fate(job_store, clock, other)
    job = await job_store.jobs.submit(new_job(band=band))
    assert await ids(job_store, worker) == [job.id]


@pytest.mark.parametrize(("model", "role"), [("wan", WorkerRole.ALL), ("tiny", WorkerRole.DECODE)])
async def test_nothing_waits_for_workers_that_cannot_do_it(
    job_store: JobStore, model: str, role: WorkerRole
) -> None:
    spot = await add_worker(job_store, is_spot=True)
    await add_worker(job_store, model, role=role)
    job = await job_store.jobs.submit(new_job(band=Band.INTERACTIVE))
    assert await ids(job_store, spot) == [job.id]


async def test_an_interrupted_job_goes_back_to_its_old_place_and_costs_no_attempt(
    job_store: JobStore, clock: FakeClock
) -> None:
    spot, on_demand = await add_worker(job_store, is_spot=True), await add_worker(job_store)
    job = await job_store.jobs.submit(new_job())
    behind = await job_store.jobs.submit(new_job())
    for _ in range(8):  # more often than any cause that counts may happen
        lease = await claim_one(job_store, spot)
        assert lease.job_id == job.id
        assert await release(job_store, lease, ReleaseCause.INTERRUPTED) is JobStatus.QUEUED
    assert await ids(job_store, on_demand) == [job.id, behind.id]
    assert (await events(job_store, job)).count("interrupted") == 8


async def test_an_interrupted_batch_job_waits_for_no_kind_again(
    job_store: JobStore, clock: FakeClock
) -> None:
    spot, on_demand = await add_worker(job_store, is_spot=True), await add_worker(job_store)
    job = await job_store.jobs.submit(new_job(band=Band.BATCH))
    lease = await claim_one(job_store, spot)
    clock.advance(job_store.config.spot_wait_seconds)
    await send_heartbeat(job_store, spot, lease)
    await release(job_store, lease, ReleaseCause.INTERRUPTED)
    assert await ids(job_store, on_demand) == [job.id]


async def test_a_worker_that_leaves_nothing_need_not_look_again(job_store: JobStore) -> None:
    spot, _ = await add_worker(job_store, is_spot=True), await add_worker(job_store)
    for number in range(2):
        claimed = await job_store.leases.try_claim(spot, Claim(claim_id=f"c{number}", num_jobs=1))
        assert (claimed.leases == [], claimed.seconds_left) == (number == 0, None)
        await job_store.jobs.submit(new_job(band=Band.BATCH))
