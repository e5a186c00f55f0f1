"""The outbox: written with a job's end, sent to one sender at a time, and retried as the standard says."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from diffuserve.domain.errors import Conflict, DeliveryNotFound, EndpointNotFound
from diffuserve.domain.jobs.job import Job
from diffuserve.domain.jobs.webhook import (
    JOB_EVENTS,
    Delivery,
    DeliveryAttempt,
    DueDelivery,
    Webhook,
    WebhookEvent,
)
from diffuserve.jobs.config import DAY, WEBHOOK_RETRY_SECONDS
from diffuserve.jobs.database import schema
from diffuserve.jobs.policy.webhook_turns import Load, SendLimits
from diffuserve.jobs.store import JobStore
from diffuserve.jobs.webhooks.due import find_due
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import Time, add_worker, claim_one, complete, fail, new_job

_URL = "https://hooks.example/diffuserve"
_LEASE_SECONDS = 60.0
_LIMITS = SendLimits(total=64)
_HOUR = 3_600.0


def hook(url: str = _URL, *events: WebhookEvent) -> Webhook:
    return Webhook(url, events or JOB_EVENTS, "http://api.test")


async def submit(store: JobStore, tenant: str = "ada", url: str = _URL, **values: Any) -> Job:
    return await store.jobs.submit(new_job(tenant, webhook=hook(url), **values))


async def due(store: JobStore, in_flight: Sequence[DueDelivery] = ()) -> list[DueDelivery]:
    """Take what a sender may start now."""
    chosen = await store.webhooks.find_due([message.delivery for message in in_flight], _LIMITS)
    return await store.webhooks.take([delivery.id for delivery in chosen], _LEASE_SECONDS)


async def cancel_new_job(store: JobStore, url: str = _URL, tenant: str = "ada") -> Job:
    """A job that has ended, the quickest way."""
    return await store.jobs.cancel((await submit(store, tenant, url)).id)


async def the_delivery(store: JobStore) -> Delivery:
    [endpoint] = await store.webhooks.endpoints()
    [delivery] = await store.webhooks.deliveries(endpoint.id)
    return delivery


async def test_every_end_of_a_job_is_reported_once(job_store: JobStore, clock: FakeClock) -> None:
    worker, time = await add_worker(job_store), Time(job_store, clock)
    expected: dict[str, str] = {}

    expected[(await submit(job_store)).id] = "job.succeeded"
    await complete(job_store, await claim_one(job_store, worker))
    expected[(await submit(job_store)).id] = "job.failed"
    await fail(job_store, await claim_one(job_store, worker), retryable=False)
    expected[(await cancel_new_job(job_store)).id] = "job.canceled"
    running = await submit(job_store)
    lease = await claim_one(job_store, worker)
    await job_store.jobs.cancel(running.id)
    await complete(job_store, lease)
    expected[running.id] = "job.canceled"
    expected[(await submit(job_store, timeout=5.0)).id] = "job.failed"
    await claim_one(job_store, worker)
    expected[(await submit(job_store, expires_in=4.0)).id] = "job.expired"
    await time.pass_by(8.0)

    reported = {message.delivery.subject_id: message.delivery.type.value for message in await due(job_store)}
    assert reported == expected
    assert await due(job_store) == []


async def test_a_retry_is_not_reported(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    await submit(job_store)
    await fail(job_store, await claim_one(job_store, worker), retryable=True)
    assert await due(job_store) == []


async def test_only_requested_events_are_reported(job_store: JobStore) -> None:
    only_failures = hook(_URL, WebhookEvent.JOB_FAILED)
    await job_store.jobs.cancel((await job_store.jobs.submit(new_job(webhook=only_failures))).id)
    await job_store.jobs.cancel((await job_store.jobs.submit(new_job())).id)
    assert await due(job_store) == []
    assert await job_store.webhooks.endpoints() == []


async def test_a_delivery_is_stored_with_the_status_or_not_at_all(job_store: JobStore) -> None:
    job = await submit(job_store)
    drop = sa.text("DROP TABLE webhook_deliveries")
    await job_store.database.write(lambda transaction: transaction.execute(drop))
    with pytest.raises(sa.exc.DBAPIError):
        await job_store.jobs.cancel(job.id)
    assert (await job_store.jobs.get(job.id)).status == "queued"


async def test_a_tenant_has_one_endpoint_for_each_url(job_store: JobStore) -> None:
    for _ in range(2):
        await cancel_new_job(job_store)
    await cancel_new_job(job_store, "https://other.example/")
    await cancel_new_job(job_store, tenant="bob")
    mine = await job_store.webhooks.endpoints("ada")
    assert sorted(endpoint.url for endpoint in mine) == [_URL, "https://other.example/"]
    assert [endpoint.url for endpoint in await job_store.webhooks.endpoints("bob")] == [_URL]


async def test_concurrent_senders_share_the_due_deliveries(job_store: JobStore) -> None:
    for number in range(12):
        await cancel_new_job(job_store, f"https://hooks.example/{number}")
    taken = await asyncio.gather(*(due(job_store) for _ in range(3)))
    ids = [message.delivery.id for messages in taken for message in messages]
    assert len(ids) == len(set(ids)) == 12
    assert await due(job_store) == []


async def test_an_attempt_whose_result_was_not_recorded_is_repeated(
    job_store: JobStore, clock: FakeClock
) -> None:
    await cancel_new_job(job_store)
    [first] = await due(job_store)
    clock.advance(_LEASE_SECONDS - 1.0)
    assert await due(job_store) == []
    clock.advance(2.0)
    [again] = await due(job_store)
    assert again.delivery.id == first.delivery.id


async def test_a_busy_endpoint_does_not_block_the_others(job_store: JobStore) -> None:
    for _ in range(_LIMITS.per_endpoint + 3):
        await cancel_new_job(job_store)
    await cancel_new_job(job_store, "https://other.example/")
    first = await due(job_store)
    assert [message.endpoint.url for message in first].count(_URL) == _LIMITS.per_endpoint
    assert first[-1].endpoint.url == "https://other.example/"
    assert await due(job_store, first) == []
    assert len(await due(job_store)) == 3


async def test_a_tenant_with_many_messages_hides_no_other(job_store: JobStore) -> None:
    urls = [f"https://h{number}.example/" for number in range(_LIMITS.per_tenant + 5)]
    await asyncio.gather(*(cancel_new_job(job_store, url, tenant="eve") for url in urls))
    first = await due(job_store)
    assert len(first) == _LIMITS.per_tenant
    assert await due(job_store, first) == []
    await cancel_new_job(job_store, tenant="ada")
    assert [message.endpoint.tenant_id for message in await due(job_store, first)] == ["ada"]
    assert len(await due(job_store)) == 5


async def test_a_full_host_leaves_the_other_hosts_of_a_tenant(job_store: JobStore) -> None:
    for tenant in ("eve", "mallory"):
        urls = [f"https://shared.example/{number}" for number in range(_LIMITS.per_tenant)]
        await asyncio.gather(*(cancel_new_job(job_store, url, tenant) for url in urls))
    hanging = await due(job_store)
    assert len(hanging) == _LIMITS.per_host
    urls = [f"https://shared.example:8443/{number}" for number in range(_LIMITS.per_tenant + 1)]
    await asyncio.gather(*(cancel_new_job(job_store, url, "ada") for url in urls))
    await cancel_new_job(job_store, "https://other.example/", "ada")
    assert [message.endpoint.url for message in await due(job_store, hanging)] == ["https://other.example/"]


@pytest.mark.parametrize("num_others", [0, 200])
async def test_the_search_reads_few_rows_however_many_messages_wait(
    job_store: JobStore, num_others: int
) -> None:
    """Count the deliveries that are handed over: a tenant's limit of each tenant, whatever waits behind."""
    await cancel_new_job(job_store, tenant="ada")
    urls = [f"https://h{number % 40}.example/{number}" for number in range(num_others)]
    await asyncio.gather(*(cancel_new_job(job_store, url, tenant="eve") for url in urls))
    load, now = Load((), _LIMITS), await job_store.database.now()
    found = await job_store.database.read(lambda connection: find_due(connection, now, load, _LIMITS))
    assert len(found) == 1 + min(num_others, _LIMITS.per_tenant)


async def test_retries_follow_the_times_of_standard_webhooks(job_store: JobStore, clock: FakeClock) -> None:
    await cancel_new_job(job_store)
    for num_attempts, pause in enumerate(WEBHOOK_RETRY_SECONDS, start=1):
        [message] = await due(job_store)
        await job_store.webhooks.record(DeliveryAttempt(message.delivery.id, 500, "responded 500"))
        delivery = await the_delivery(job_store)
        assert (delivery.status, delivery.num_attempts) == ("pending", num_attempts)
        clock.advance(pause - 0.1)
        assert await due(job_store) == [], f"too early after attempt {num_attempts}"
        clock.advance(0.1 * pause + 0.2)
    [last] = await due(job_store)
    await job_store.webhooks.record(DeliveryAttempt(last.delivery.id, None, "no response in time"))
    clock.advance(30 * DAY)
    assert await due(job_store) == []
    delivery = await the_delivery(job_store)
    assert (delivery.status, delivery.num_attempts) == ("failed", 10)
    assert (delivery.last_status, delivery.last_error) == (None, "no response in time")


async def test_a_delivered_message_is_not_sent_again(job_store: JobStore, clock: FakeClock) -> None:
    await cancel_new_job(job_store)
    [message] = await due(job_store)
    await job_store.webhooks.record(DeliveryAttempt(message.delivery.id, 204))
    clock.advance(DAY)
    assert await due(job_store) == []
    assert (await the_delivery(job_store)).status == "delivered"
    assert await job_store.webhooks.num_waiting() == 0


async def test_status_410_disables_the_endpoint_until_it_is_enabled(job_store: JobStore) -> None:
    for _ in range(3):
        await cancel_new_job(job_store)
    first, second, _third = await due(job_store)
    await job_store.webhooks.record(DeliveryAttempt(first.delivery.id, 410, "responded 410"))
    await job_store.webhooks.record(DeliveryAttempt(second.delivery.id, 500, "responded 500"))
    await cancel_new_job(job_store)
    [endpoint] = await job_store.webhooks.endpoints()
    assert endpoint.disabled_at is not None
    statuses = [delivery.status.value for delivery in await job_store.webhooks.deliveries(endpoint.id)]
    assert sorted(statuses) == ["failed", "skipped", "skipped", "skipped"]
    assert await job_store.webhooks.num_waiting() == 0

    with pytest.raises(Conflict, match="enable it first"):
        await job_store.webhooks.redeliver(endpoint.id, first.delivery.id)
    assert (await job_store.webhooks.enable(endpoint.id, "ada")).disabled_at is None
    await job_store.webhooks.redeliver(endpoint.id, first.delivery.id)
    await cancel_new_job(job_store)
    assert len(await due(job_store)) == 2


async def test_redelivery_starts_over_with_the_same_id(job_store: JobStore, clock: FakeClock) -> None:
    await cancel_new_job(job_store)
    [message] = await due(job_store)
    await job_store.webhooks.record(DeliveryAttempt(message.delivery.id, 200))
    again = await job_store.webhooks.redeliver(message.endpoint.id, message.delivery.id, "ada")
    assert (again.id, again.status, again.num_attempts) == (message.delivery.id, "pending", 0)
    assert [found.delivery.id for found in await due(job_store)] == [message.delivery.id]


async def test_webhooks_of_another_tenant_are_not_found(job_store: JobStore) -> None:
    await cancel_new_job(job_store)
    [message] = await due(job_store)
    webhooks = job_store.webhooks
    assert await webhooks.endpoints("eve") == []
    with pytest.raises(EndpointNotFound):
        await webhooks.deliveries(message.endpoint.id, "eve")
    with pytest.raises(EndpointNotFound):
        await webhooks.enable(message.endpoint.id, "eve")
    with pytest.raises(DeliveryNotFound):
        await webhooks.redeliver(message.endpoint.id, message.delivery.id, "eve")
    with pytest.raises(DeliveryNotFound):
        await webhooks.redeliver(message.endpoint.id, "msg_unknown", "ada")


async def test_deliveries_are_listed_by_page(job_store: JobStore) -> None:
    for _ in range(5):
        await cancel_new_job(job_store)
    [endpoint] = await job_store.webhooks.endpoints()
    whole = await job_store.webhooks.deliveries(endpoint.id)
    first = await job_store.webhooks.deliveries(endpoint.id, limit=3)
    rest = await job_store.webhooks.deliveries(endpoint.id, after=first[-1].id)
    assert first + rest == whole
    assert len(whole) == 5


async def test_signing_secrets_overlap_when_they_are_rotated(job_store: JobStore, clock: FakeClock) -> None:
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


async def test_endpoints_are_listed_by_page(job_store: JobStore) -> None:
    for number in range(5):
        await cancel_new_job(job_store, f"https://h{number}.example/")
    await cancel_new_job(job_store, tenant="bob")
    webhooks = job_store.webhooks
    whole = await webhooks.endpoints("ada")
    first = await webhooks.endpoints("ada", limit=3)
    assert first + await webhooks.endpoints("ada", after=first[-1].id) == whole
    assert len(whole) == 5
    assert whole[0].id > whole[-1].id
    assert len(await webhooks.endpoints()) == 6


async def endpoint_urls(store: JobStore) -> list[str]:
    await store.housekeeping.find_outdated(10)
    return sorted(endpoint.url for endpoint in await store.webhooks.endpoints())


async def test_endpoints_without_messages_are_forgotten(job_store: JobStore, clock: FakeClock) -> None:
    for url in ("https://gone.example/", "https://quiet.example/", "https://used.example/"):
        await cancel_new_job(job_store, url)
    for message in await due(job_store):
        is_gone = message.endpoint.url == "https://gone.example/"
        await job_store.webhooks.record(DeliveryAttempt(message.delivery.id, 410 if is_gone else 200))
    clock.advance(6 * DAY)
    assert len(await endpoint_urls(job_store)) == 3
    await cancel_new_job(job_store, "https://used.example/")
    clock.advance(2 * DAY)
    assert await endpoint_urls(job_store) == ["https://gone.example/", "https://used.example/"]
    clock.advance(23 * DAY)
    assert await endpoint_urls(job_store) == [], "the message of the used one waited for two weeks"


async def test_old_deliveries_are_deleted_unless_they_are_pending(
    job_store: JobStore, clock: FakeClock
) -> None:
    await cancel_new_job(job_store)
    await cancel_new_job(job_store)
    first, _open = await due(job_store)
    await job_store.webhooks.record(DeliveryAttempt(first.delivery.id, 200))
    clock.advance(8 * DAY)
    await job_store.housekeeping.find_outdated(10)
    rows = await job_store.database.rows(sa.select(schema.webhook_deliveries))
    assert [row.status for row in rows] == ["pending"]
