"""Senders of webhooks under load: hanging receivers of one tenant, and other senders beside them."""

import asyncio
import shutil
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import pytest
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.domain.jobs.webhook import JOB_EVENTS, Webhook
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.webhook_turns import SendLimits
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import new_job
from support.waiting import HANG_SECONDS
from support.webhook_receiver import WebhookReceiver, receiving
from support.webhook_sender import sending

NUM_TARPITS = 200
NUM_SAMPLES = 5
LIMITS = SendLimits(total=256)


@pytest.fixture
async def store(
    tmp_path: Path, migrated_file: Path, bus: MemoryEventBus, store_config: StoreConfig, clock: FakeClock
) -> AsyncGenerator[JobStore]:
    shutil.copy(migrated_file, tmp_path / "jobs.db")
    store = JobStore(f"sqlite:///{tmp_path}/jobs.db", bus, store_config, clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def timeout_seconds() -> float:
    """Return how long a receiver may take: longer than any test waits, unless a test sets it."""
    return 2 * HANG_SECONDS


@pytest.fixture
def app(make_app: Callable[[ApiConfig], FastAPI], timeout_seconds: float) -> FastAPI:
    return make_app(
        ApiConfig(
            webhook_allowed_networks=("127.0.0.0/8",),
            webhook_allowed_ports=("1-65535",),
            webhook_timeout_seconds=timeout_seconds,
        )
    )


@pytest.fixture
async def receiver() -> AsyncGenerator[WebhookReceiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def tarpit() -> AsyncGenerator[WebhookReceiver]:
    async with receiving() as tarpit:
        tarpit.script = deque([None] * 10 * NUM_TARPITS)
        yield tarpit


async def end_a_job(store: JobStore, tenant: str, url: str) -> None:
    webhook = Webhook(url, JOB_EVENTS, "http://api.test")
    job = await store.jobs.submit(new_job(tenant, webhook=webhook))
    await store.jobs.cancel(job.id)


async def seconds_to(receiver: WebhookReceiver, store: JobStore, tenant: str) -> float:
    """Return the median of the seconds from a job's submission to the message about its end."""
    samples = []
    for _ in range(NUM_SAMPLES):
        expected, start = len(receiver.received) + 1, perf_counter()
        await end_a_job(store, tenant, receiver.url)
        await receiver.wait_for(expected)
        samples.append(perf_counter() - start)
    return median(samples)


async def test_a_tenants_hanging_receivers_do_not_delay_another_tenant(
    app: FastAPI, store: JobStore, receiver: WebhookReceiver, tarpit: WebhookReceiver
) -> None:
    async with sending(app):
        alone = await seconds_to(receiver, store, "ada")
        urls = [f"{tarpit.url}/{number}" for number in range(NUM_TARPITS)]
        await asyncio.gather(*(end_a_job(store, "eve", url) for url in urls))
        await tarpit.wait_for(LIMITS.per_tenant)
        beside = await seconds_to(receiver, store, "ada")
    assert len(tarpit.received) == LIMITS.per_tenant, "the tenant has more in flight than its limit"
    assert beside < 20 * alone


@pytest.mark.parametrize("timeout_seconds", [20.0, 300.0])
async def test_no_other_sender_repeats_an_attempt_before_its_timeout(
    app: FastAPI, store: JobStore, tarpit: WebhookReceiver, clock: FakeClock, timeout_seconds: float
) -> None:
    async with sending(app):
        await end_a_job(store, "ada", tarpit.url)
        await tarpit.wait_for(1)
        clock.advance(timeout_seconds + 1.0)
        assert await store.webhooks.find_due((), LIMITS) == []
        clock.advance(60.0)
        assert len(await store.webhooks.find_due((), LIMITS)) == 1, "as if the sender had been killed"
