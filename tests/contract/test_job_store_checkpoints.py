"""The newest checkpoint of a job stays with it until it ends, and only its live lease may replace it."""

import pytest

from diffuserve.domain.errors import LeaseLost
from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.workers.worker import Lease, ModelOffer, Registration, ReleaseCause, WorkerRole
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import (
    REPORT,
    SPEC,
    Time,
    add_worker,
    claim,
    claim_one,
    complete,
    fail,
    hand_over,
    new_job,
    release,
)


async def leased(store: JobStore) -> Lease:
    await store.jobs.submit(new_job(cost_seconds=60.0))
    return await claim_one(store, await add_worker(store))


async def keep(store: JobStore, lease: Lease, step: int, key_id: str = "") -> StoredCheckpoint:
    stored = StoredCheckpoint(
        lease_token=lease.lease_token, slot=step % 2, step=step, size_bytes=100, sha256="a" * 64
    )
    await store.leases.keep_checkpoint(lease.job_id, stored, key_id)
    return stored


@pytest.mark.parametrize("cause", ReleaseCause)
async def test_a_release_keeps_the_newest(job_store: JobStore, cause: ReleaseCause) -> None:
    lease = await leased(job_store)
    assert lease.checkpoint is None
    await keep(job_store, lease, 10)
    newest = await keep(job_store, lease, 20)
    await release(job_store, lease, cause)
    again = await claim_one(job_store, await add_worker(job_store))
    assert again.checkpoint == newest


async def test_a_lost_lease_keeps_the_newest(job_store: JobStore, clock: FakeClock) -> None:
    lease = await leased(job_store)
    newest = await keep(job_store, lease, 10)
    await Time(job_store, clock).pass_by(40.0)
    again = await claim_one(job_store, await add_worker(job_store))
    assert again.checkpoint == newest
    with pytest.raises(LeaseLost):
        await keep(job_store, lease, 20)
    assert (await job_store.leases.begun(lease.job_id))[1] == newest


async def test_the_one_before_is_returned_to_be_deleted(job_store: JobStore) -> None:
    lease = await leased(job_store)
    first = await keep(job_store, lease, 10)
    await release(job_store, lease)
    again = await claim_one(job_store, await add_worker(job_store))
    newer = StoredCheckpoint(lease_token=again.lease_token, slot=0, step=30, size_bytes=100, sha256="b" * 64)
    assert await job_store.leases.keep_checkpoint(again.job_id, newer) == first
    tokens = await job_store.housekeeping.tokens_of([again.job_id])
    assert tokens == {again.job_id: {again.lease_token}}


async def test_its_files_count_while_it_is_needed(job_store: JobStore) -> None:
    lease = await leased(job_store)
    await keep(job_store, lease, 10)
    await release(job_store, lease)
    again = await claim_one(job_store, await add_worker(job_store))
    tokens = await job_store.housekeeping.tokens_of([again.job_id])
    assert tokens == {again.job_id: {lease.lease_token, again.lease_token}}


async def test_a_failed_attempt_is_tried_without_it(job_store: JobStore, clock: FakeClock) -> None:
    """The fault may be in it."""
    lease = await leased(job_store)
    await keep(job_store, lease, 10)
    assert await fail(job_store, lease, retryable=True) == JobStatus.QUEUED
    await Time(job_store, clock).pass_by(60.0)
    assert (await claim_one(job_store, await add_worker(job_store))).checkpoint is None


async def test_finished_latents_take_its_place(job_store: JobStore) -> None:
    await job_store.jobs.submit(new_job(cost_seconds=60.0))
    lease = await claim_one(job_store, await add_worker(job_store, role=WorkerRole.DENOISE))
    await keep(job_store, lease, 10)
    await hand_over(job_store, lease)
    again = await claim_one(job_store, await add_worker(job_store, role=WorkerRole.DECODE))
    assert again.latents is not None
    assert again.checkpoint is None


@pytest.mark.parametrize("end", ["succeeded", "failed", "canceled"])
async def test_that_of_an_ended_job_is_found_until_it_is_forgotten(job_store: JobStore, end: str) -> None:
    lease = await leased(job_store)
    newest = await keep(job_store, lease, 10)
    assert await job_store.housekeeping.ended_checkpoints(10) == {}
    if end == "canceled":
        await job_store.jobs.cancel(lease.job_id)
    await (fail(job_store, lease, retryable=False) if end == "failed" else complete(job_store, lease))
    assert (await job_store.jobs.get(lease.job_id)).status == end
    assert await job_store.housekeeping.ended_checkpoints(10) == {lease.job_id: newest}
    await job_store.housekeeping.forget_checkpoints([lease.job_id])
    assert await job_store.housekeeping.ended_checkpoints(10) == {}


async def test_only_the_worker_that_holds_the_lease_may_keep_one(job_store: JobStore) -> None:

    offer = ModelOffer(spec=SPEC)
    worker = await job_store.leases.register(Registration(models=(offer,), report=REPORT), "key-a")
    await job_store.jobs.submit(new_job())
    (lease,) = await claim(job_store, worker)
    with pytest.raises(LeaseLost):
        await keep(job_store, lease, 1, "key-b")
    await keep(job_store, lease, 1, "key-a")


async def test_keeping_one_changes_nothing_that_clients_see(job_store: JobStore) -> None:
    lease = await leased(job_store)
    before = await job_store.jobs.get(lease.job_id)
    await keep(job_store, lease, 10)
    assert await job_store.jobs.get(lease.job_id) == before
