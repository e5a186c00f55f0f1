"""Batches: submitted by thousands, canceled, ended and kept as a whole."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from diffuserve.domain.errors import (
    BacklogFull,
    BatchNotFound,
    Conflict,
    IdempotencyMismatch,
    QueueFull,
    TooLarge,
)
from diffuserve.domain.jobs.batch import Batch, NewBatch
from diffuserve.domain.jobs.job import Band, JobStatus, NewJob
from diffuserve.domain.jobs.webhook import Webhook, WebhookEvent
from diffuserve.domain.tenant import Plan
from diffuserve.jobs.config import DAY, StoreConfig
from diffuserve.jobs.database import schema
from diffuserve.jobs.policy.webhook_turns import SendLimits
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import Time, add_worker, claim, claim_one, complete, fail, new_job

_PLAN = Plan(name="wide", max_running=1_000, max_queued=2_000)


@pytest.fixture
def store_config() -> StoreConfig:
    return StoreConfig(plans={"wide": _PLAN}, default_plan="wide", max_backlog_seconds=5_000)


def new_batch(num_items: int, cost_seconds: float = 0.0, **values: Any) -> NewBatch:
    return NewBatch(tenant_id="ada", num_items=num_items, cost_seconds=cost_seconds or num_items, **values)


def items(batch: Batch, numbers: Sequence[int]) -> list[NewJob]:
    return [
        new_job(batch.tenant_id, band=Band.BATCH, batch_id=batch.id, custom_id=f"item-{number}")
        for number in numbers
    ]


async def store_batch(store: JobStore, num_items: int, **values: Any) -> Batch:
    batch = await store.batches.open(new_batch(num_items, **values))
    assert await store.batches.add(batch.id, 0, items(batch, range(num_items))) == num_items
    return await store.batches.get(batch.id)


async def finish(store: JobStore, worker: str, num_jobs: int = 100) -> None:
    for lease in await claim(store, worker, num_jobs):
        await complete(store, lease)


async def test_a_batch_ends_with_the_last_of_its_items(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    batch = await store_batch(job_store, 3)
    assert (batch.status, batch.counts) == ("running", {JobStatus.QUEUED: 3})
    for lease in await claim(job_store, worker, 2):
        await complete(job_store, lease)
    assert (await job_store.batches.get(batch.id)).status == "running"
    await fail(job_store, await claim_one(job_store, worker), retryable=False)
    ended = await job_store.batches.get(batch.id, "ada")
    assert (ended.status, ended.counts) == ("completed", {JobStatus.SUCCEEDED: 2, JobStatus.FAILED: 1})
    found = await job_store.batches.ended_items(batch.id)
    assert [(item.custom_id, item.status.value) for item in found] == [
        ("item-0", "succeeded"),
        ("item-1", "succeeded"),
        ("item-2", "failed"),
    ]


async def test_ended_items_are_listed_by_page_in_order(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    batch = await store_batch(job_store, 30)
    await finish(job_store, worker)
    first = await job_store.batches.ended_items(batch.id, limit=20)
    rest = await job_store.batches.ended_items(batch.id, first[-1].id)
    assert [item.custom_id for item in first + rest] == [f"item-{number}" for number in range(30)]


async def test_a_batch_is_not_over_before_all_items_are_stored(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    batch = await job_store.batches.open(new_batch(4))
    await job_store.batches.add(batch.id, 0, items(batch, range(2)))
    await finish(job_store, worker)
    assert (await job_store.batches.get(batch.id)).status == "accepting"
    await job_store.batches.add(batch.id, 2, items(batch, range(2, 4)))
    await finish(job_store, worker)
    assert (await job_store.batches.get(batch.id)).status == "completed"


async def test_items_that_are_added_twice_are_stored_once(job_store: JobStore) -> None:
    batch = await job_store.batches.open(new_batch(4))
    for _ in range(2):
        assert await job_store.batches.add(batch.id, 0, items(batch, range(2))) == 2
    assert await job_store.batches.add(batch.id, 2, items(batch, range(2, 4))) == 4
    assert (await job_store.batches.get(batch.id)).counts == {JobStatus.QUEUED: 4}


async def test_two_submissions_with_the_same_key_store_one_batch(job_store: JobStore) -> None:
    new = new_batch(40, idempotency_key="again", fingerprint="a")

    async def call() -> str:
        batch = await job_store.batches.open(new)
        stored = batch.num_stored
        while stored < 40:
            stored = await job_store.batches.add(batch.id, stored, items(batch, range(stored, stored + 10)))
        return batch.id

    ids = await asyncio.gather(*(call() for _ in range(4)))
    assert len(set(ids)) == 1
    assert (await job_store.batches.get(ids[0])).counts == {JobStatus.QUEUED: 40}
    with pytest.raises(IdempotencyMismatch):
        await job_store.batches.open(new_batch(1, idempotency_key="again", fingerprint="b"))


async def test_a_batch_needs_room_for_all_its_items(job_store: JobStore) -> None:
    with pytest.raises(TooLarge, match="allows 2,000"):
        await job_store.batches.open(new_batch(_PLAN.max_queued + 1))
    await job_store.jobs.submit(new_job("ada"))
    with pytest.raises(QueueFull):
        await job_store.batches.open(new_batch(_PLAN.max_queued))
    with pytest.raises(BacklogFull):
        await job_store.batches.open(new_batch(10, cost_seconds=5_001))
    assert await job_store.batches.list_batches() == []
    await store_batch(job_store, _PLAN.max_queued - 1)
    with pytest.raises(QueueFull):
        await job_store.jobs.submit(new_job("ada"))


async def test_of_two_batches_at_once_past_the_limit_one_is_stored_whole(job_store: JobStore) -> None:
    first = await job_store.batches.open(new_batch(1_200))
    with pytest.raises(QueueFull, match="1,200 jobs queued"):
        await job_store.batches.open(new_batch(1_200))
    stored = await job_store.batches.add(first.id, 0, items(first, range(1_000)))
    with pytest.raises(QueueFull):
        await job_store.batches.find_room(new_batch(801))
    assert await job_store.batches.find_room(new_batch(800)) is None
    await job_store.jobs.submit(new_job("ada"))
    assert await job_store.batches.add(first.id, stored, items(first, range(stored, 1_200))) == 1_200
    [batch] = await job_store.batches.list_batches()
    assert (batch.status, batch.counts) == ("running", {JobStatus.QUEUED: 1_200})


async def test_batches_reserve_device_seconds_too(job_store: JobStore) -> None:
    batch = await job_store.batches.open(new_batch(10, cost_seconds=4_000))
    for tenant in ("ada", "bob"):
        with pytest.raises(BacklogFull, match="4,000 device-seconds"):
            await job_store.jobs.submit(new_job(tenant, cost_seconds=1_001))
    await job_store.batches.add(batch.id, 0, items(batch, range(10)))
    await job_store.jobs.submit(new_job("bob", cost_seconds=4_000))


async def test_a_canceled_batch_gives_its_room_back(job_store: JobStore) -> None:
    batch = await job_store.batches.open(new_batch(_PLAN.max_queued))
    await job_store.batches.cancel(batch.id)
    assert await job_store.batches.find_room(new_batch(_PLAN.max_queued)) is None


async def test_a_batch_that_nobody_continues_is_canceled(job_store: JobStore, clock: FakeClock) -> None:
    webhook = Webhook("https://hooks.example/", (WebhookEvent.BATCH_COMPLETED,), "http://api.test")
    batch = await job_store.batches.open(new_batch(_PLAN.max_queued, webhook=webhook))
    clock.advance(3_000.0)
    await job_store.batches.add(batch.id, 0, items(batch, range(3)))
    await Time(job_store, clock).pass_by(2.0)
    assert (await job_store.batches.get(batch.id)).status == "accepting", "it has made progress"
    clock.advance(3_600.0)
    await Time(job_store, clock).pass_by(2.0)
    ended = await job_store.batches.get(batch.id)
    assert (ended.status, ended.counts) == ("canceled", {JobStatus.CANCELED: 3})
    assert await job_store.batches.find_room(new_batch(_PLAN.max_queued)) is None
    [delivery] = await job_store.webhooks.find_due((), SendLimits(total=10))
    assert delivery.subject_id == batch.id


async def test_a_key_that_was_used_finds_its_batch_whatever_the_room(job_store: JobStore) -> None:
    new = new_batch(_PLAN.max_queued, idempotency_key="again", fingerprint="a")
    assert await job_store.batches.find_room(new) is None
    batch = await job_store.batches.open(new)
    assert await job_store.batches.find_room(new) == batch
    with pytest.raises(IdempotencyMismatch):
        await job_store.batches.find_room(new_batch(1, idempotency_key="again", fingerprint="b"))


async def test_tenants_share_fairly_between_the_items_of_batches(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    batch = await store_batch(job_store, 10)
    await job_store.jobs.submit(new_job("bob", band=Band.BATCH))
    leases = await claim(job_store, worker, 3)
    assert {lease.band for lease in leases} == {Band.BATCH}
    served = [await job_store.jobs.get(lease.job_id) for lease in leases]
    assert {job.tenant_id for job in served} == {"ada", "bob"}, "a batch went as a whole"
    assert batch.counts == {JobStatus.QUEUED: 10}


async def test_canceling_a_batch_ends_queued_and_running_items(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    batch = await store_batch(job_store, 1_200)
    [done, *running] = await claim(job_store, worker, 3)
    await complete(job_store, done)
    assert (await job_store.batches.cancel(batch.id, "ada")).status == "canceling"
    await job_store.batches.cancel_items(batch.id)
    assert (await job_store.batches.get(batch.id)).status == "canceling"
    for lease in running:
        await complete(job_store, lease)
    ended = await job_store.batches.get(batch.id)
    assert (ended.status, ended.counts) == (
        "canceled",
        {JobStatus.SUCCEEDED: 1, JobStatus.CANCELED: 1_199},
    )


async def test_the_reaper_resumes_the_cancellation_of_a_killed_process(
    job_store: JobStore, clock: FakeClock
) -> None:
    batch = await store_batch(job_store, 1_200)
    await job_store.batches.cancel(batch.id)
    await Time(job_store, clock).pass_by(10.0)
    assert (await job_store.batches.get(batch.id)).status == "canceled"


async def test_a_batch_canceled_while_it_is_submitted_accepts_no_more_items(
    job_store: JobStore,
) -> None:
    batch = await job_store.batches.open(new_batch(4))
    await job_store.batches.add(batch.id, 0, items(batch, range(2)))
    await job_store.batches.cancel(batch.id)
    with pytest.raises(Conflict):
        await job_store.batches.add(batch.id, 2, items(batch, range(2, 4)))
    await job_store.batches.cancel_items(batch.id)
    assert (await job_store.batches.get(batch.id)).status == "canceled"


async def test_an_ended_batch_cannot_be_canceled(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    batch = await store_batch(job_store, 1)
    await finish(job_store, worker)
    assert (await job_store.batches.cancel(batch.id)).status == "completed"


async def test_a_requeued_item_reopens_its_batch(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    batch = await store_batch(job_store, 1)
    await fail(job_store, await claim_one(job_store, worker), retryable=False)
    [item] = await job_store.batches.ended_items(batch.id)
    await job_store.operations.requeue(item.id)
    assert (await job_store.batches.get(batch.id)).status == "running"
    await finish(job_store, worker)
    assert (await job_store.batches.get(batch.id)).status == "completed"


async def test_the_end_of_a_batch_is_reported_once(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    webhook = Webhook("https://hooks.example/", (WebhookEvent.BATCH_COMPLETED,), "http://api.test")
    batch = await store_batch(job_store, 5, webhook=webhook)
    await finish(job_store, worker)
    due = await job_store.webhooks.find_due((), SendLimits(total=10))
    assert [(delivery.type.value, delivery.subject_id) for delivery in due] == [("batch.completed", batch.id)]


async def test_a_batch_of_another_tenant_is_not_found(job_store: JobStore) -> None:
    batch = await store_batch(job_store, 1)
    with pytest.raises(BatchNotFound):
        await job_store.batches.get(batch.id, "eve")
    with pytest.raises(BatchNotFound):
        await job_store.batches.cancel(batch.id, "eve")
    with pytest.raises(BatchNotFound):
        await job_store.batches.get("batch_nonsense\0")
    assert await job_store.batches.list_batches(tenant_id="eve") == []
    assert [kept.id for kept in await job_store.batches.list_batches(tenant_id="ada")] == [batch.id]


async def counted(store: JobStore, batch: Batch) -> dict[JobStatus, int]:
    """Return how many items the batch really has, by status."""
    jobs = schema.jobs
    rows = sa.select(jobs.c.status, sa.func.count().label("n")).where(jobs.c.batch_id == batch.id)
    return {JobStatus(row.status): row.n for row in await store.database.rows(rows.group_by(jobs.c.status))}


async def test_counts_follow_every_change_of_an_item(job_store: JobStore, clock: FakeClock) -> None:
    worker, batch = await add_worker(job_store), await store_batch(job_store, 12)
    other = await store_batch(job_store, 3)

    async def check(expected: dict[JobStatus, int]) -> None:
        assert (await job_store.batches.get(batch.id)).counts == expected == await counted(job_store, batch)

    leases = await claim(job_store, worker, 8)
    await check({JobStatus.QUEUED: 4, JobStatus.RUNNING: 8})
    await complete(job_store, leases[0])
    await complete(job_store, leases[0])  # its response was lost
    await fail(job_store, leases[1], retryable=False)
    await fail(job_store, leases[2], retryable=True)
    await job_store.jobs.cancel(leases[3].job_id)
    await check(
        {
            JobStatus.QUEUED: 5,
            JobStatus.RUNNING: 4,
            JobStatus.CANCELING: 1,
            JobStatus.SUCCEEDED: 1,
            JobStatus.FAILED: 1,
        }
    )
    await job_store.operations.requeue(leases[1].job_id)
    await complete(job_store, leases[3])
    clock.advance(job_store.config.lease_seconds + 1)
    await job_store.housekeeping.reap("here")
    await check({JobStatus.QUEUED: 10, JobStatus.SUCCEEDED: 1, JobStatus.CANCELED: 1})
    await job_store.batches.cancel(batch.id)
    await job_store.batches.cancel_items(batch.id)
    await check({JobStatus.SUCCEEDED: 1, JobStatus.CANCELED: 11})
    assert (await job_store.batches.get(other.id)).counts == {JobStatus.QUEUED: 3}


async def test_batches_are_listed_without_a_look_at_their_items(job_store: JobStore) -> None:
    batches = [await store_batch(job_store, number) for number in (1, 2, 3)]
    drop = sa.delete(schema.jobs)
    await job_store.database.write(lambda transaction: transaction.execute(drop))
    listed = await job_store.batches.list_batches()
    assert [batch.counts for batch in listed] == [{JobStatus.QUEUED: number} for number in (3, 2, 1)]
    assert [batch.id for batch in listed] == [batch.id for batch in reversed(batches)]


async def test_a_batch_is_kept_and_deleted_as_a_whole(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    batch = await store_batch(job_store, 2)
    await complete(job_store, await claim_one(job_store, worker))
    await fail(job_store, await claim_one(job_store, worker), retryable=False)
    clock.advance(2 * DAY)  # by which a failed job would be forgotten
    assert await job_store.housekeeping.find_outdated(10) == []
    assert sum((await job_store.batches.get(batch.id)).counts.values()) == 2
    clock.advance(6 * DAY)
    await job_store.housekeeping.forget(await job_store.housekeeping.find_outdated(10))
    await job_store.housekeeping.find_outdated(10)
    assert await job_store.database.rows(sa.select(schema.batches)) == []
