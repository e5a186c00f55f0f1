"""Watching a job without a database: messages may be lost, and polls find what they missed."""

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from diffuserve.api.job_watcher import JobWatcher
from diffuserve.domain.errors import JobNotFound
from diffuserve.domain.job import Band, Job, JobEvent, JobStatus
from diffuserve.events.base import job_topic
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from support.waiting import HANG_SECONDS

QUEUED = Job(
    id="job_1",
    tenant_id="t",
    kind="image.generate",
    model="m",
    status=JobStatus.QUEUED,
    band=Band.STANDARD,
    input={},
    metadata={},
    cost_seconds=1,
    step_tokens=1,
    attempt=0,
    lease_token=0,
    version=1,
    created_at=0,
)


class SingleJobStore:
    """Store of a single job, which changes when a test calls `become`."""

    def __init__(self) -> None:
        self.job: Job | None = QUEUED
        self.log = [JobEvent("job_1", 1, "queued", {}, 0)]
        self.num_reads = 0

    @property
    def jobs(self) -> "SingleJobStore":
        return self

    async def get(self, job_id: str) -> Job:
        self.num_reads += 1
        if self.job is None:
            raise JobNotFound(job_id)
        return self.job

    async def events_after(self, job_id: str, seq: int) -> list[JobEvent]:
        return [event for event in self.log if event.seq > seq]

    def become(self, status: JobStatus) -> None:
        assert self.job is not None
        self.job = replace(self.job, status=status, version=self.job.version + 1)
        self.log.append(JobEvent("job_1", len(self.log) + 1, status.value, {}, 0))


@pytest.fixture
def store() -> SingleJobStore:
    return SingleJobStore()


@pytest.fixture
def bus() -> MemoryEventBus:
    return MemoryEventBus()


def make_watcher(store: SingleJobStore, bus: MemoryEventBus, poll_seconds: float) -> JobWatcher:
    return JobWatcher(cast(JobStore, store), bus, poll_seconds)


async def types(watcher: JobWatcher, after: int = 0) -> list[str]:
    async with asyncio.timeout(HANG_SECONDS):
        return [
            event.type if isinstance(event, JobEvent) else event["type"]
            async for event in watcher.events("job_1", after)
        ]


async def test_a_lost_message_delays_a_change_by_one_poll(store: SingleJobStore, bus: MemoryEventBus) -> None:
    reading = asyncio.create_task(types(make_watcher(store, bus, poll_seconds=0.01)))
    while store.num_reads < 2:
        await asyncio.sleep(0)
    store.become(JobStatus.SUCCEEDED)  # without a message on the bus
    assert await reading == ["queued", "succeeded"]


async def test_a_message_shows_a_change_at_once(store: SingleJobStore, bus: MemoryEventBus) -> None:
    reading = asyncio.create_task(types(make_watcher(store, bus, poll_seconds=1000)))
    while not store.num_reads:
        await asyncio.sleep(0)
    store.become(JobStatus.RUNNING)
    store.become(JobStatus.SUCCEEDED)
    bus.publish(job_topic("job_1"), {"type": "changed"})
    assert await reading == ["queued", "running", "succeeded"]


async def test_live_messages_come_between_stored_events(store: SingleJobStore, bus: MemoryEventBus) -> None:
    reading = asyncio.create_task(types(make_watcher(store, bus, poll_seconds=1000), after=1))
    while not store.num_reads:
        await asyncio.sleep(0)
    bus.publish(job_topic("job_1"), {"type": "progress", "step": 1})
    store.become(JobStatus.FAILED)
    bus.publish(job_topic("job_1"), {"type": "changed"})
    assert await reading == ["progress", "failed"]
    assert not bus.subscriptions


async def test_events_end_when_the_job_is_deleted(store: SingleJobStore, bus: MemoryEventBus) -> None:
    reading = asyncio.create_task(types(make_watcher(store, bus, poll_seconds=0.01)))
    while store.num_reads < 2:
        await asyncio.sleep(0)
    store.job = None
    assert await reading == ["queued"]


async def test_a_requeued_job_is_watched_until_its_last_final_status(
    store: SingleJobStore, bus: MemoryEventBus
) -> None:
    for status in (JobStatus.FAILED, JobStatus.QUEUED, JobStatus.SUCCEEDED):
        store.become(status)
    assert await types(make_watcher(store, bus, poll_seconds=1000)) == [
        "queued",
        "failed",
        "queued",
        "succeeded",
    ]


async def test_a_wait_ends_after_its_seconds(store: SingleJobStore, bus: MemoryEventBus) -> None:
    waiting = make_watcher(store, bus, poll_seconds=1000).final("job_1", 0.02)
    job = await asyncio.wait_for(waiting, HANG_SECONDS)
    assert job.status is JobStatus.QUEUED
