"""Jobs of two phases: denoised by one worker, decoded by another."""

import pytest

from diffuserve.domain.errors import LatentsUnusable, LeaseLost
from diffuserve.domain.jobs.job import Band, JobStatus
from diffuserve.domain.workers.worker import Lease, LeaseEnd, WorkerRole
from diffuserve.jobs.database import schema
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import (
    Time,
    add_worker,
    claim,
    claim_one,
    complete,
    events,
    fail,
    finish,
    hand_over,
    new_job,
    release,
    send_heartbeat,
)


async def denoised(store: JobStore, seconds: float = 6.0) -> Lease:
    """Submit a job, have its first phase done, and return the lease of that."""
    await store.jobs.submit(new_job(cost_seconds=10.0, decode_seconds=4.0))
    lease = await claim_one(store, await add_worker(store, role=WorkerRole.DENOISE))
    await hand_over(store, lease, seconds)
    return lease


async def charged(store: JobStore, tenant: str = "ada") -> float:
    """Return the device-seconds that a tenant was charged."""
    rows = await store.database.rows(schema.tenants.select().where(schema.tenants.c.id == tenant))
    return float(rows[0].vtime) * (await store.operations.tenant(tenant)).plan.weight


async def test_a_job_is_denoised_by_one_worker_and_decoded_by_another(
    job_store: JobStore, clock: FakeClock
) -> None:
    job = await job_store.jobs.submit(new_job(cost_seconds=10.0, decode_seconds=4.0))
    first = await claim_one(job_store, await add_worker(job_store, role=WorkerRole.DENOISE))
    assert (first.until, first.latents) == (LeaseEnd.LATENTS, None)
    clock.advance(6.5)
    assert await hand_over(job_store, first, seconds=6.5) is JobStatus.QUEUED
    second = await claim_one(job_store, await add_worker(job_store, role=WorkerRole.DECODE))
    assert second.until is LeaseEnd.FILES
    assert second.latents is not None
    assert second.latents.lease_token == first.lease_token
    clock.advance(3.0)
    await complete(job_store, second, seconds=3.0)
    done = await job_store.jobs.get(job.id)
    assert (done.status, done.actual_seconds) == (JobStatus.SUCCEEDED, 9.5)
    assert await events(job_store, job) == ["queued", "running", "denoised", "running", "succeeded"]
    assert await job_store.leases.latents_of(job.id) is None


async def test_a_worker_gets_no_phase_that_its_role_does_not_do(job_store: JobStore) -> None:
    await denoised(job_store)
    assert await claim(job_store, await add_worker(job_store, role=WorkerRole.DENOISE)) == []
    await job_store.jobs.submit(new_job("bob"))
    (lease,) = await claim(job_store, await add_worker(job_store, role=WorkerRole.DECODE), 4)
    assert lease.latents is not None


async def test_a_worker_of_every_role_decodes_what_others_denoised(job_store: JobStore) -> None:
    await denoised(job_store)
    lease = await claim_one(job_store, await add_worker(job_store))
    assert (lease.until, lease.latents is None) == (LeaseEnd.FILES, False)


async def test_each_phase_is_charged_for_its_part(job_store: JobStore, clock: FakeClock) -> None:
    await job_store.jobs.submit(new_job(cost_seconds=10.0, decode_seconds=4.0))
    lease = await claim_one(job_store, await add_worker(job_store, role=WorkerRole.DENOISE))
    assert await charged(job_store) == pytest.approx(6.0)
    clock.advance(7.0)
    await hand_over(job_store, lease, seconds=7.0)
    assert await charged(job_store) == pytest.approx(7.0)
    second = await claim_one(job_store, await add_worker(job_store, role=WorkerRole.DECODE))
    assert await charged(job_store) == pytest.approx(11.0)
    clock.advance(3.0)
    await complete(job_store, second, seconds=3.0)
    assert await charged(job_store) == pytest.approx(10.0)


async def test_a_decode_that_was_lost_starts_from_the_latents_again(
    job_store: JobStore, clock: FakeClock
) -> None:
    first = await denoised(job_store)
    decoder = await add_worker(job_store, role=WorkerRole.DECODE)
    lost = await claim_one(job_store, decoder)
    await Time(job_store, clock).pass_by(40.0)
    again = await claim_one(job_store, decoder)
    assert again.latents == lost.latents
    assert again.latents is not None
    assert again.latents.lease_token == first.lease_token
    with pytest.raises(LeaseLost):
        await complete(job_store, lost)


@pytest.mark.parametrize("retryable", [True, False])
async def test_unusable_latents_are_made_anew_once(job_store: JobStore, retryable: bool) -> None:
    job_id = (await denoised(job_store)).job_id
    decoder, denoiser = [
        await add_worker(job_store, role=role) for role in (WorkerRole.DECODE, WorkerRole.DENOISE)
    ]
    lease = await claim_one(job_store, decoder)
    assert await fail(job_store, lease, retryable, LatentsUnusable.code) == JobStatus.QUEUED
    assert await claim(job_store, decoder) == []
    await hand_over(job_store, await claim_one(job_store, denoiser))
    lease = await claim_one(job_store, decoder)
    assert await fail(job_store, lease, retryable=False, code=LatentsUnusable.code) == JobStatus.FAILED
    error = (await job_store.jobs.get(job_id)).error
    assert error is not None
    assert error.code == LatentsUnusable.code


async def test_a_handover_that_is_repeated_has_the_same_outcome(job_store: JobStore) -> None:
    lease = await denoised(job_store)
    assert await hand_over(job_store, lease) is JobStatus.QUEUED
    await claim_one(job_store, await add_worker(job_store, role=WorkerRole.DECODE))
    assert await hand_over(job_store, lease) is JobStatus.RUNNING


async def test_a_stale_token_hands_nothing_over(job_store: JobStore) -> None:
    await job_store.jobs.submit(new_job())
    denoiser = await add_worker(job_store, role=WorkerRole.DENOISE)
    stale = await claim_one(job_store, denoiser)
    await release(job_store, stale)
    await claim_one(job_store, denoiser)
    with pytest.raises(LeaseLost):
        await hand_over(job_store, stale)


async def test_a_canceled_job_is_not_handed_over(job_store: JobStore) -> None:
    job = await job_store.jobs.submit(new_job())
    lease = await claim_one(job_store, await add_worker(job_store, role=WorkerRole.DENOISE))
    await job_store.jobs.cancel(job.id)
    assert await hand_over(job_store, lease) == JobStatus.CANCELED


async def test_latents_are_kept_while_they_are_needed_and_no_longer(job_store: JobStore) -> None:
    first = await denoised(job_store)
    tokens = job_store.housekeeping.tokens_of
    second = await claim_one(job_store, await add_worker(job_store, role=WorkerRole.DECODE))
    assert await tokens([first.job_id]) == {first.job_id: {first.lease_token, second.lease_token}}
    await complete(job_store, second)
    assert await tokens([first.job_id]) == {first.job_id: {second.lease_token}}


async def test_a_denoised_job_comes_before_later_ones_of_its_tenant(job_store: JobStore) -> None:
    await denoised(job_store)
    await job_store.jobs.submit(new_job(cost_seconds=1.0))
    leases = await claim(job_store, await add_worker(job_store), 2)
    assert [lease.latents is None for lease in leases] == [False, True]


async def test_an_urgent_job_comes_before_a_denoised_one(job_store: JobStore) -> None:
    await denoised(job_store)
    await job_store.jobs.submit(new_job("bob", band=Band.INTERACTIVE))
    assert (await claim_one(job_store, await add_worker(job_store))).latents is None


async def test_without_a_worker_that_decodes_the_estimate_says_what_is_missing(job_store: JobStore) -> None:
    lease = await denoised(job_store)
    job = await job_store.jobs.get(lease.job_id)
    estimate = await job_store.jobs.estimate(job)
    assert estimate is not None
    assert estimate.eta_s_low is None
    assert estimate.reason is not None
    assert "--role decode" in estimate.reason


async def test_with_a_worker_that_decodes_the_estimate_counts_that_phase_alone(job_store: JobStore) -> None:
    lease = await denoised(job_store)
    await add_worker(job_store, role=WorkerRole.DECODE)
    estimate = await job_store.jobs.estimate(await job_store.jobs.get(lease.job_id))
    assert estimate is not None
    assert estimate.eta_s_low is not None
    assert estimate.eta_s_high is not None
    assert estimate.eta_s_low < 4.0 < estimate.eta_s_high < 20.0, "the job takes 10 s in all, decoding 4"


async def test_work_is_handed_over_where_a_queue_waits_for_this_worker(job_store: JobStore) -> None:
    alone, waited_for = [await add_worker(job_store) for _ in range(2)]
    await job_store.jobs.submit(new_job("ada", cost_seconds=20.0, decode_seconds=10.0))
    lease = await claim_one(job_store, alone)
    assert lease.until is LeaseEnd.FILES, "no worker only decodes"
    await add_worker(job_store, role=WorkerRole.DECODE)
    await job_store.jobs.submit(new_job("ada", cost_seconds=20.0, decode_seconds=10.0))
    assert (await claim_one(job_store, waited_for)).until is LeaseEnd.FILES, "nothing waits"
    for _ in range(8):
        await job_store.jobs.submit(new_job("bob", cost_seconds=20.0, decode_seconds=10.0))
    before = await charged(job_store, "bob")
    leases = await claim(job_store, waited_for, 1, claim_id="same")
    assert [lease.until for lease in leases] == [LeaseEnd.LATENTS]
    assert await claim(job_store, waited_for, 1, claim_id="same") == leases
    assert await charged(job_store, "bob") == pytest.approx(before + 10.0)


async def test_what_was_handed_over_before_counts_as_waiting_to_be_decoded(job_store: JobStore) -> None:
    everything = await add_worker(job_store)
    await add_worker(job_store, role=WorkerRole.DECODE)
    for _ in range(12):
        await job_store.jobs.submit(new_job(cost_seconds=11.0, decode_seconds=10.0))
    leases = await claim(job_store, everything, 8)
    ends = [lease.until for lease in leases]
    assert ends[0] is LeaseEnd.LATENTS
    assert ends[-1] is LeaseEnd.FILES, "the decode worker has enough to do"


@pytest.mark.parametrize(("price", "until"), [(0.5, LeaseEnd.LATENTS), (2.0, LeaseEnd.FILES)])
async def test_a_decode_worker_must_be_worth_its_price(
    job_store: JobStore, price: float, until: LeaseEnd
) -> None:
    everything = await add_worker(job_store, price_per_hour=1.0)
    await add_worker(job_store, role=WorkerRole.DECODE, price_per_hour=price)
    for _ in range(8):
        await job_store.jobs.submit(new_job(cost_seconds=20.0, decode_seconds=10.0))
    assert (await claim_one(job_store, everything)).until is until


async def test_a_decode_worker_that_is_lost_gets_nothing(job_store: JobStore, clock: FakeClock) -> None:
    await add_worker(job_store, role=WorkerRole.DECODE)
    for _ in range(8):
        await job_store.jobs.submit(new_job(cost_seconds=20.0, decode_seconds=10.0))
    await Time(job_store, clock).pass_by(100.0)
    lease = await claim_one(job_store, await add_worker(job_store))
    assert lease.until is LeaseEnd.FILES


async def test_both_phases_of_all_jobs_end_whatever_is_lost(job_store: JobStore, clock: FakeClock) -> None:
    denoiser, decoder = [
        await add_worker(job_store, role=role) for role in (WorkerRole.DENOISE, WorkerRole.DECODE)
    ]
    jobs = [await job_store.jobs.submit(new_job(name)) for name in ("ada", "bob", "cid")]
    lost = await claim(job_store, denoiser, 3)
    for lease in lost[:2]:
        await hand_over(job_store, lease)
    await claim(job_store, decoder, 1)
    await Time(job_store, clock).pass_by(40.0)
    for worker in (denoiser, decoder):
        await send_heartbeat(job_store, worker)
        for lease in await claim(job_store, worker, 4):
            await finish(job_store, lease)
    statuses = [(await job_store.jobs.get(job.id)).status for job in jobs]
    assert statuses == [JobStatus.SUCCEEDED] * 3
    logs = [await events(job_store, job) for job in jobs]
    assert [log.count("denoised") for log in logs] == [1, 1, 1]
