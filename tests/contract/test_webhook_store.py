"""The outbox: written with a job's end, sent once to each, tried again as the standard says."""

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from diffuserve.domain.errors import Conflict, DeliveryNotFound, EndpointNotFound
from diffuserve.domain.job import Job
from diffuserve.domain.webhook import JOB_EVENTS, Attempt, Delivery, DueDelivery, Webhook, WebhookEvent
from diffuserve.jobs import schema
from diffuserve.jobs.config import DAY, WEBHOOK_RETRY_SECONDS
from diffuserve.jobs.store import JobStore
from diffuserve.jobs.webhooks.outbox import MAX_AT_ONCE_PER_ENDPOINT
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import Time, add_worker, claim_one, complete, fail, new_job

_URL = "https://hooks.example/diffuserve"
_HOUR = 3_600.0


def hook(url: str = _URL, *events: WebhookEvent) -> Webhook:
    return Webhook(url, events or JOB_EVENTS, "http://api.test")


async def submit(store: JobStore, tenant: str = "ada", url: str = _URL, **values: Any) -> Job:
    return await store.jobs.submit(new_job(tenant, webhook=hook(url), **values))


async def due(store: JobStore, limit: int = 64, *busy: str) -> list[DueDelivery]:
    return await store.webhooks.take_due(limit, frozenset(busy))


async def cancel_one(store: JobStore, url: str = _URL, tenant: str = "ada") -> Job:
    """A job that has ended, the quickest way."""
    return await store.jobs.cancel((await submit(store, tenant, url)).id)


async def the_delivery(store: JobStore) -> Delivery:
    [endpoint] = await store.webhooks.endpoints()
    [delivery] = await store.webhooks.deliveries(endpoint.id)
    return delivery


async def test_every_end_of_a_job_is_told_once(job_store: JobStore, clock: FakeClock) -> None:
    worker, time = await add_worker(job_store), Time(job_store, clock)
    expected: dict[str, str] = {}

    expected[(await submit(job_store)).id] = "job.succeeded"
    await complete(job_store, await claim_one(job_store, worker))
    expected[(await submit(job_store)).id] = "job.failed"
    await fail(job_store, await claim_one(job_store, worker), retryable=False)
    expected[(await cancel_one(job_store)).id] = "job.canceled"
    running = await submit(job_store)
    lease = await claim_one(job_store, worker)
    await job_store.jobs.cancel(running.id)
    await complete(job_store, lease)
    expected[running.id] = "job.canceled"
    expected[(await submit(job_store, timeout=5.0)).id] = "job.failed"
    await claim_one(job_store, worker)
    expected[(await submit(job_store, expires_in=4.0)).id] = "job.expired"
    await time.pass_by(8.0)

    told = {one.delivery.subject_id: one.delivery.type.value for one in await due(job_store)}
    assert told == expected
    assert await due(job_store) == []


async def test_a_retry_is_no_end(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    await submit(job_store)
    await fail(job_store, await claim_one(job_store, worker), retryable=True)
    assert await due(job_store) == []


async def test_only_what_was_asked_for_is_told(job_store: JobStore) -> None:
    only_failures = hook(_URL, WebhookEvent.JOB_FAILED)
    await job_store.jobs.cancel((await job_store.jobs.submit(new_job(webhook=only_failures))).id)
    await job_store.jobs.cancel((await job_store.jobs.submit(new_job())).id)
    assert await due(job_store) == []
    assert await job_store.webhooks.endpoints() == []


async def test_a_message_is_written_with_the_status_or_not_at_all(job_store: JobStore) -> None:
    job = await submit(job_store)
    drop = sa.text("DROP TABLE webhook_deliveries")
    await job_store.database.write(lambda transaction: transaction.execute(drop))
    with pytest.raises(sa.exc.DBAPIError):
        await job_store.jobs.cancel(job.id)
    assert (await job_store.jobs.get(job.id)).status == "queued"


async def test_a_tenant_has_one_endpoint_for_each_url(job_store: JobStore) -> None:
    for _ in range(2):
        await cancel_one(job_store)
    await cancel_one(job_store, "https://other.example/")
    await cancel_one(job_store, tenant="bob")
    mine = await job_store.webhooks.endpoints("ada")
    assert sorted(one.url for one in mine) == [_URL, "https://other.example/"]
    assert [one.url for one in await job_store.webhooks.endpoints("bob")] == [_URL]


async def test_senders_that_look_together_share_the_work(job_store: JobStore) -> None:
    for number in range(12):
        await cancel_one(job_store, f"https://hooks.example/{number}")
    taken = await asyncio.gather(*(due(job_store, 4) for _ in range(3)))
    ids = [one.delivery.id for some in taken for one in some]
    assert len(ids) == len(set(ids)) == 12


async def test_a_try_that_nobody_told_the_end_of_is_made_again(job_store: JobStore, clock: FakeClock) -> None:
    await cancel_one(job_store)
    [first] = await due(job_store)
    clock.advance(59.0)
    assert await due(job_store) == []
    clock.advance(2.0)
    [again] = await due(job_store)
    assert again.delivery.id == first.delivery.id


async def test_an_endpoint_that_is_busy_holds_up_nobody_else(job_store: JobStore) -> None:
    for _ in range(MAX_AT_ONCE_PER_ENDPOINT + 3):
        await cancel_one(job_store)
    await cancel_one(job_store, "https://other.example/")
    first = await due(job_store)
    assert [one.endpoint.url for one in first].count(_URL) == MAX_AT_ONCE_PER_ENDPOINT
    assert first[-1].endpoint.url == "https://other.example/"
    assert await due(job_store, 64, first[0].endpoint.id) == []
    assert len(await due(job_store)) == 3


async def test_retries_keep_the_standards_times(job_store: JobStore, clock: FakeClock) -> None:
    await cancel_one(job_store)
    for num_attempts, pause in enumerate(WEBHOOK_RETRY_SECONDS, start=1):
        [one] = await due(job_store)
        await job_store.webhooks.record(Attempt(one.delivery.id, 500, "answered 500"))
        delivery = await the_delivery(job_store)
        assert (delivery.status, delivery.num_attempts) == ("pending", num_attempts)
        clock.advance(pause - 0.1)
        assert await due(job_store) == [], f"too early after attempt {num_attempts}"
        clock.advance(0.1 * pause + 0.2)
    [last] = await due(job_store)
    await job_store.webhooks.record(Attempt(last.delivery.id, None, "no answer in time"))
    clock.advance(30 * DAY)
    assert await due(job_store) == []
    delivery = await the_delivery(job_store)
    assert (delivery.status, delivery.num_attempts) == ("failed", 10)
    assert (delivery.last_status, delivery.last_error) == (None, "no answer in time")


async def test_what_was_delivered_is_done(job_store: JobStore, clock: FakeClock) -> None:
    await cancel_one(job_store)
    [one] = await due(job_store)
    await job_store.webhooks.record(Attempt(one.delivery.id, 204))
    clock.advance(DAY)
    assert await due(job_store) == []
    assert (await the_delivery(job_store)).status == "delivered"
    assert await job_store.webhooks.num_waiting() == 0


async def test_gone_disables_the_endpoint_until_it_is_enabled(job_store: JobStore) -> None:
    for _ in range(3):
        await cancel_one(job_store)
    first, second, _third = await due(job_store)
    await job_store.webhooks.record(Attempt(first.delivery.id, 410, "answered 410"))
    await job_store.webhooks.record(Attempt(second.delivery.id, 500, "answered 500"))
    await cancel_one(job_store)
    [endpoint] = await job_store.webhooks.endpoints()
    assert endpoint.disabled_at is not None
    statuses = [one.status.value for one in await job_store.webhooks.deliveries(endpoint.id)]
    assert sorted(statuses) == ["failed", "skipped", "skipped", "skipped"]
    assert await job_store.webhooks.num_waiting() == 0

    with pytest.raises(Conflict, match="enable it first"):
        await job_store.webhooks.redeliver(endpoint.id, first.delivery.id)
    assert (await job_store.webhooks.enable(endpoint.id, "ada")).disabled_at is None
    await job_store.webhooks.redeliver(endpoint.id, first.delivery.id)
    await cancel_one(job_store)
    assert len(await due(job_store)) == 2


async def test_redelivery_starts_afresh_with_the_same_id(job_store: JobStore, clock: FakeClock) -> None:
    await cancel_one(job_store)
    [one] = await due(job_store)
    await job_store.webhooks.record(Attempt(one.delivery.id, 200))
    again = await job_store.webhooks.redeliver(one.endpoint.id, one.delivery.id, "ada")
    assert (again.id, again.status, again.num_attempts) == (one.delivery.id, "pending", 0)
    assert [found.delivery.id for found in await due(job_store)] == [one.delivery.id]


async def test_nobody_reaches_another_tenants_webhooks(job_store: JobStore) -> None:
    await cancel_one(job_store)
    [one] = await due(job_store)
    webhooks = job_store.webhooks
    assert await webhooks.endpoints("eve") == []
    with pytest.raises(EndpointNotFound):
        await webhooks.deliveries(one.endpoint.id, "eve")
    with pytest.raises(EndpointNotFound):
        await webhooks.enable(one.endpoint.id, "eve")
    with pytest.raises(DeliveryNotFound):
        await webhooks.redeliver(one.endpoint.id, one.delivery.id, "eve")
    with pytest.raises(DeliveryNotFound):
        await webhooks.redeliver(one.endpoint.id, "msg_unknown", "ada")


async def test_deliveries_are_listed_by_pages(job_store: JobStore) -> None:
    for _ in range(5):
        await cancel_one(job_store)
    [endpoint] = await job_store.webhooks.endpoints()
    whole = await job_store.webhooks.deliveries(endpoint.id)
    first = await job_store.webhooks.deliveries(endpoint.id, limit=3)
    rest = await job_store.webhooks.deliveries(endpoint.id, after=first[-1].id)
    assert first + rest == whole
    assert len(whole) == 5


async def test_secrets_overlap_when_they_are_rotated(job_store: JobStore, clock: FakeClock) -> None:
    webhooks = job_store.webhooks
    old = await webhooks.secret("ada")
    assert old.startswith("whsec_")
    assert await webhooks.secret("ada") == old
    assert await webhooks.secret("bob") != old
    new = await webhooks.rotate_secret("ada", _HOUR)
    assert await webhooks.signing_secrets("ada") == [new, old]
    clock.advance(_HOUR + 1)
    assert await webhooks.signing_secrets("ada") == [new]
    clock.advance(1.0)
    newest = await webhooks.rotate_secret("ada", 0.0)
    assert await webhooks.signing_secrets("ada") == [newest]


async def test_old_deliveries_are_forgotten_and_open_ones_are_not(
    job_store: JobStore, clock: FakeClock
) -> None:
    await cancel_one(job_store)
    await cancel_one(job_store)
    first, _open = await due(job_store)
    await job_store.webhooks.record(Attempt(first.delivery.id, 200))
    clock.advance(8 * DAY)
    await job_store.housekeeping.find_outdated(10)
    rows = await job_store.database.rows(sa.select(schema.webhook_deliveries))
    assert [row.status for row in rows] == ["pending"]
