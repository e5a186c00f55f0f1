"""Taking jobs in, finding them again, and what clients do to them."""

import asyncio
from typing import Any

import pytest

from diffuserve.domain.errors import (
    BacklogFull,
    Conflict,
    IdempotencyMismatch,
    JobNotFound,
    QueueFull,
)
from diffuserve.domain.jobs.job import Band, JobStatus
from diffuserve.domain.tenant import PlanOverrides, Role
from diffuserve.jobs.config import DAY, StoreConfig
from diffuserve.jobs.reads import outlook
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import Time, add_worker, claim, claim_one, complete, events, fail, new_job


async def test_a_job_is_queued_with_its_first_event(job_store: JobStore) -> None:
    job = await job_store.jobs.submit(new_job(metadata={"a": 1}))
    assert job.status is JobStatus.QUEUED
    assert await job_store.jobs.get(job.id) == job
    assert await events(job_store, job) == ["queued"]


async def test_a_job_of_another_tenant_is_not_found(job_store: JobStore) -> None:
    job = await job_store.jobs.submit(new_job("ada"))
    assert (await job_store.jobs.get(job.id, "ada")).id == job.id
    for act in (job_store.jobs.get, job_store.jobs.cancel, job_store.jobs.delete):
        with pytest.raises(JobNotFound):
            await act(job.id, "bob")
    assert (await job_store.jobs.get(job.id)).status is JobStatus.QUEUED


async def test_the_same_key_and_body_return_the_same_job(job_store: JobStore) -> None:
    first = await job_store.jobs.submit(new_job(idempotency_key="k", fingerprint="f"))
    again = await job_store.jobs.submit(new_job(idempotency_key="k", fingerprint="f"))
    other = await job_store.jobs.submit(new_job("bob", idempotency_key="k", fingerprint="f"))
    assert again.id == first.id != other.id
    assert len(await job_store.jobs.list_jobs()) == 2


async def test_the_same_key_with_another_body_is_a_mismatch(job_store: JobStore) -> None:
    await job_store.jobs.submit(new_job(idempotency_key="k", fingerprint="f"))
    with pytest.raises(IdempotencyMismatch):
        await job_store.jobs.submit(new_job(idempotency_key="k", fingerprint="g"))
    assert len(await job_store.jobs.list_jobs()) == 1


async def test_a_key_is_forgotten_after_a_day(job_store: JobStore, clock: FakeClock) -> None:
    first = await job_store.jobs.submit(new_job(idempotency_key="k", fingerprint="f"))
    clock.advance(DAY + 1)
    again = await job_store.jobs.submit(new_job(idempotency_key="k", fingerprint="g"))
    assert again.id != first.id


async def test_a_tenant_queues_as_many_jobs_as_its_plan_allows(job_store: JobStore) -> None:
    await job_store.keys.create(Role.TENANT, tenant_id="ada", overrides=PlanOverrides(max_queued=2))
    for _ in range(2):
        await job_store.jobs.submit(new_job("ada"))
    with pytest.raises(QueueFull) as refusal:
        await job_store.jobs.submit(new_job("ada"))
    assert refusal.value.retry_after
    await job_store.jobs.submit(new_job("bob"))
    worker = await add_worker(job_store)
    await claim(job_store, worker, num_jobs=3)
    await job_store.jobs.submit(new_job("ada"))


class TestBacklog:
    @pytest.fixture
    def store_config(self) -> StoreConfig:
        return StoreConfig(max_backlog_seconds=10.0)

    async def test_work_beyond_the_backlog_limit_is_refused(self, job_store: JobStore) -> None:
        await job_store.jobs.submit(new_job(cost_seconds=8.0))
        with pytest.raises(BacklogFull):
            await job_store.jobs.submit(new_job("bob", cost_seconds=3.0))
        await job_store.jobs.submit(new_job("bob", cost_seconds=1.0))


async def test_jobs_are_listed_newest_first_by_page_and_status(job_store: JobStore) -> None:
    jobs = [await job_store.jobs.submit(new_job()) for _ in range(5)]
    await job_store.jobs.submit(new_job("bob"))
    await job_store.jobs.cancel(jobs[1].id)
    ids = [job.id for job in reversed(jobs)]
    page = await job_store.jobs.list_jobs(tenant_id="ada", limit=2)
    rest = await job_store.jobs.list_jobs(tenant_id="ada", after=page[-1].id)
    assert [job.id for job in [*page, *rest]] == ids
    canceled = await job_store.jobs.list_jobs(tenant_id="ada", statuses=[JobStatus.CANCELED])
    assert [job.id for job in canceled] == [jobs[1].id]


async def test_canceling_a_queued_job_ends_it_at_once(job_store: JobStore) -> None:
    job = await job_store.jobs.submit(new_job())
    assert (await job_store.jobs.cancel(job.id)).status is JobStatus.CANCELED
    assert (await job_store.jobs.cancel(job.id)).status is JobStatus.CANCELED, "it may be repeated"
    assert await claim(job_store, await add_worker(job_store)) == []
    assert await events(job_store, job) == ["queued", "canceled"]


async def test_canceling_a_running_job_waits_for_its_worker(job_store: JobStore) -> None:
    job = await job_store.jobs.submit(new_job())
    worker = await add_worker(job_store)
    lease = await claim_one(job_store, worker)
    assert (await job_store.jobs.cancel(job.id)).status is JobStatus.CANCELING
    assert (await job_store.leases.control_commands(worker)).cancel == (job.id,)
    assert await complete(job_store, lease) == JobStatus.CANCELED, "the client was shown that it is canceling"
    after = await job_store.jobs.get(job.id)
    assert after.result is None
    assert await events(job_store, job) == ["queued", "running", "canceling", "canceled"]


async def test_only_failed_expired_and_canceled_jobs_can_be_requeued(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    job = await job_store.jobs.submit(new_job())
    with pytest.raises(Conflict):
        await job_store.operations.requeue(job.id)
    await fail(job_store, await claim_one(job_store, worker), retryable=False)
    again = await job_store.operations.requeue(job.id)
    assert again.status is JobStatus.QUEUED
    assert again.error is None
    lease = await claim_one(job_store, worker)
    assert (lease.attempt, lease.lease_token) == (2, 2)
    await complete(job_store, lease)
    with pytest.raises(Conflict):
        await job_store.operations.requeue(job.id)
    assert await events(job_store, job) == ["queued", "running", "failed", "requeued", "running", "succeeded"]


async def test_a_deleted_job_is_hidden_and_canceled_if_it_runs(job_store: JobStore, clock: FakeClock) -> None:
    queued, running = [await job_store.jobs.submit(new_job()) for _ in range(2)]
    await job_store.jobs.delete(queued.id)
    worker = await add_worker(job_store)
    lease = await claim_one(job_store, worker)
    assert lease.job_id == running.id
    await job_store.jobs.delete(running.id)
    for job in (queued, running):
        with pytest.raises(JobNotFound):
            await job_store.jobs.get(job.id)
    assert (await job_store.leases.control_commands(worker)).cancel == (running.id,)
    assert await job_store.housekeeping.find_outdated(10) == [queued.id], "the other is still held"
    assert await complete(job_store, lease) == JobStatus.CANCELED
    assert set(await job_store.housekeeping.find_outdated(10)) == {queued.id, running.id}
    await job_store.housekeeping.forget([queued.id, running.id])
    assert await job_store.housekeeping.find_outdated(10) == []


async def test_the_estimate_is_a_range_that_grows_with_the_queue(job_store: JobStore) -> None:
    await add_worker(job_store)
    first = await job_store.jobs.submit(new_job("ada", cost_seconds=2.0))
    last = await job_store.jobs.submit(new_job("ada", cost_seconds=2.0))
    for _ in range(10):
        await job_store.jobs.submit(new_job("bob", cost_seconds=2.0))
    soon, later = await job_store.jobs.estimate(first), await job_store.jobs.estimate(last)
    assert soon is not None
    assert later is not None
    assert soon.ahead < later.ahead <= 11
    assert soon.eta_s_low is not None
    assert soon.eta_s_high is not None
    assert later.eta_s_low is not None
    assert soon.eta_s_low < 2.0 < soon.eta_s_high
    assert later.eta_s_low > soon.eta_s_low
    better = await job_store.jobs.submit(new_job("cid", band=Band.INTERACTIVE, cost_seconds=2.0))
    ahead = await job_store.jobs.estimate(better)
    assert ahead is not None
    assert ahead.ahead == 0


async def test_the_estimate_has_no_time_while_no_worker_takes_jobs(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    job = await job_store.jobs.submit(new_job("ada"))
    await job_store.leases.drain(worker)
    estimate = await job_store.jobs.estimate(job)
    assert estimate is not None
    assert (estimate.eta_s_low, estimate.eta_s_high) == (None, None)
    assert str(estimate.reason).startswith("no worker serves")


async def test_all_who_ask_for_an_estimate_share_one_reading_of_the_queue(
    job_store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask all at once: every place must be right, and the reads as few as for one."""
    await add_worker(job_store)
    jobs = [await job_store.jobs.submit(new_job("ada")) for _ in range(60)]
    await job_store.jobs.submit(new_job("bob"))
    await claim_one(job_store, await add_worker(job_store))
    num_reads, read = 0, job_store.database.read

    async def count(work: Any) -> Any:
        nonlocal num_reads
        num_reads += 1
        return await read(work)

    monkeypatch.setattr(job_store.database, "read", count)
    await job_store.jobs.estimate(jobs[-1])
    reads_of_one, num_reads = num_reads, 0
    estimates = await asyncio.gather(*(job_store.jobs.estimate(job) for job in jobs[1:]))
    assert reads_of_one <= 10
    assert num_reads == 0
    ahead = [estimate.ahead for estimate in estimates if estimate is not None]
    assert ahead[0] in (0, 1)
    assert ahead == sorted(ahead)
    assert ahead[-1] - ahead[0] == 58


async def test_places_in_a_long_queue_are_close(job_store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook, "_MAX_PARTS", 10)
    await add_worker(job_store)
    jobs = [await job_store.jobs.submit(new_job("ada", cost_seconds=2.0)) for _ in range(85)]
    estimates = [await job_store.jobs.estimate(job) for job in jobs]
    for place, estimate in enumerate(estimates):
        assert estimate is not None
        assert estimate.eta_s_low is not None
        assert estimate.eta_s_high is not None
        assert place - 9 <= estimate.ahead <= place
        assert estimate.eta_s_low < 2.0 * (estimate.ahead + 1) < estimate.eta_s_high


async def test_a_job_that_is_not_queued_has_no_estimate(job_store: JobStore) -> None:
    job = await job_store.jobs.submit(new_job())
    await claim_one(job_store, await add_worker(job_store))
    assert await job_store.jobs.estimate(await job_store.jobs.get(job.id)) is None


async def test_a_job_that_waits_past_its_deadline_expires(job_store: JobStore, clock: FakeClock) -> None:
    time = Time(job_store, clock)
    job = await job_store.jobs.submit(new_job(expires_in=5.0))
    await time.pass_by(4.0)
    assert (await job_store.jobs.get(job.id)).status is JobStatus.QUEUED
    await time.pass_by(2.0)
    assert (await job_store.jobs.get(job.id)).status is JobStatus.EXPIRED
    assert await events(job_store, job) == ["queued", "expired"]


async def test_claim_leases_no_expired_job(job_store: JobStore, clock: FakeClock) -> None:
    job = await job_store.jobs.submit(new_job(expires_in=5.0))
    clock.advance(6.0)
    assert await claim(job_store, await add_worker(job_store)) == []
    assert (await job_store.jobs.get(job.id)).status is JobStatus.EXPIRED


async def test_a_job_that_has_started_does_not_expire(job_store: JobStore, clock: FakeClock) -> None:
    time = Time(job_store, clock)
    job = await job_store.jobs.submit(new_job(expires_in=5.0))
    lease = await claim_one(job_store, await add_worker(job_store))
    await fail(job_store, lease, retryable=True)
    await time.pass_by(10.0)
    assert (await job_store.jobs.get(job.id)).status is JobStatus.QUEUED
