"""What clients are told of their wait knows what was submitted and claimed since the queue was read."""

import asyncio

import pytest

from diffuserve.domain.jobs.job import Band, Job, QueueEstimate
from diffuserve.domain.workers.worker import Release, ReleaseCause
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import add_worker, claim, claim_one, complete, new_job, send_heartbeat


async def estimate(store: JobStore, job: Job) -> QueueEstimate:
    found = await store.jobs.estimate(job)
    assert found is not None
    return found


async def test_each_response_of_a_burst_counts_the_jobs_before_it(job_store: JobStore) -> None:
    await add_worker(job_store)
    await estimate(job_store, await job_store.jobs.submit(new_job()))
    for number in range(1, 30):
        told = await estimate(job_store, await job_store.jobs.submit(new_job(cost_seconds=1.0)))
        assert told.ahead == number
    together = await asyncio.gather(*(job_store.jobs.submit(new_job(cost_seconds=1.0)) for _ in range(30)))
    ahead = [(await estimate(job_store, job)).ahead for job in sorted(together, key=lambda job: job.seq)]
    assert ahead == list(range(30, 60))


async def test_another_tenants_burst_and_bands_count_at_once(job_store: JobStore) -> None:
    await add_worker(job_store)
    await estimate(job_store, await job_store.jobs.submit(new_job("ada", cost_seconds=1.0)))
    for _ in range(10):
        await job_store.jobs.submit(new_job("bob", band=Band.INTERACTIVE, cost_seconds=1.0))
    last = await job_store.jobs.submit(new_job("ada", band=Band.BATCH, cost_seconds=1.0))
    assert (await estimate(job_store, last)).ahead == 11


async def test_what_workers_claim_is_ahead_no_longer_but_runs(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    jobs = [await job_store.jobs.submit(new_job(cost_seconds=10.0)) for _ in range(8)]
    before = await estimate(job_store, jobs[-1])
    await claim(job_store, worker, num_jobs=4)
    after = await estimate(job_store, jobs[-1])
    assert (before.ahead, after.ahead) == (7, 3)
    assert before.eta_s_low is not None
    assert after.eta_s_low is not None
    assert after.eta_s_high is not None
    assert after.eta_s_low < before.eta_s_low
    assert after.eta_s_high > 2.0 * 40  # what runs is not over yet


async def test_what_has_ended_since_does_not_run_any_more(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    last = await job_store.jobs.submit(new_job(cost_seconds=1.0, band=Band.BATCH))
    alone = await estimate(job_store, last)
    for _ in range(3):
        await job_store.jobs.submit(new_job(cost_seconds=10.0))
    leases = await claim(job_store, worker, num_jobs=3)
    busy = await estimate(job_store, last)
    for lease in leases:
        await complete(job_store, lease)
    assert busy != alone
    assert await estimate(job_store, last) == alone


async def test_a_preempted_job_waits_again_with_what_is_left_of_it(
    job_store: JobStore, clock: FakeClock
) -> None:
    worker = await add_worker(job_store)
    before = await job_store.jobs.submit(new_job(cost_seconds=10.0, band=Band.BATCH))
    told = await estimate(job_store, before)
    lease = await claim_one(job_store, worker)
    clock.advance(9.0)
    cause = ReleaseCause.PREEMPTED
    release = Release(lease_token=lease.lease_token, cause=cause, actual_seconds=9.0)
    await job_store.leases.release(lease.job_id, release)
    again = await estimate(job_store, await job_store.jobs.get(before.id))
    assert again.ahead == 0
    assert told.eta_s_high is not None
    assert again.eta_s_high == pytest.approx(told.eta_s_high / 10)


async def test_canceled_jobs_are_ahead_no_longer(job_store: JobStore) -> None:
    await add_worker(job_store)
    jobs = [await job_store.jobs.submit(new_job()) for _ in range(5)]
    assert (await estimate(job_store, jobs[-1])).ahead == 4
    await job_store.jobs.cancel(jobs[0].id)
    assert (await estimate(job_store, jobs[-1])).ahead == 3


async def test_ranges_learn_from_the_ends_of_jobs_whoever_is_told_of_them(
    job_store: JobStore, other_store: JobStore, clock: FakeClock
) -> None:
    """On a machine that takes eight times as long as predicted."""
    worker = await add_worker(job_store)
    alone = new_job(cost_seconds=10.0)
    told = await job_store.jobs.foresee(alone)
    for _ in range(24):
        await estimate(job_store, await job_store.jobs.submit(alone))
    for _ in range(24):
        lease = await claim_one(other_store, worker)
        clock.advance(80.0)
        await send_heartbeat(other_store, worker, lease)
        await complete(other_store, lease)
    while (learned := await job_store.jobs.foresee(alone)).ahead or learned == told:
        await asyncio.sleep(0.05)  # the queue is read once a second
    assert told.eta_s_high is not None
    assert learned.eta_s_high is not None
    assert told.eta_s_high < 80.0 <= learned.eta_s_high < 100.0
    assert await estimate(job_store, await job_store.jobs.submit(alone)) == learned
