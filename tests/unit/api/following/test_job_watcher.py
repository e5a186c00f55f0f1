"""Watching jobs without a database: messages may be lost, and polls find what they missed."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import replace
from typing import cast

import pytest

from diffuserve.api.following.job_watcher import JobWatcher
from diffuserve.api.following.streamed_events import StreamedEvent
from diffuserve.api.following.watched_jobs import WatchedJobs
from diffuserve.domain.errors import JobNotFound, ServerUnavailable
from diffuserve.domain.jobs.job import Band, Job, JobEvent, JobStatus, Revision
from diffuserve.events.base import job_topic
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from support.virtual_time import in_virtual_time
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


class FewJobsStore:
    """Store of some jobs, which change when a test calls `become`; `num_reads` counts its queries."""

    def __init__(self, num_jobs: int = 1) -> None:
        self.stored = {
            job_id: replace(QUEUED, id=job_id) for job_id in (f"job_{n + 1}" for n in range(num_jobs))
        }
        self.logged = {job_id: [JobEvent(job_id, 1, "queued", {}, 0)] for job_id in self.stored}
        self.num_reads = 0
        self.is_down = False

    @property
    def jobs(self) -> "FewJobsStore":
        return self

    @property
    def job(self) -> Job:
        return self.stored["job_1"]

    async def get_many(self, job_ids: Collection[str]) -> dict[str, Job]:
        await self._read()
        return {job_id: job for job_id, job in self.stored.items() if job_id in job_ids}

    async def revisions(self, job_ids: Collection[str]) -> dict[str, Revision]:
        await self._read()
        return {job_id: job.revision for job_id, job in self.stored.items() if job_id in job_ids}

    async def logs(self, job_ids: Collection[str]) -> dict[str, list[JobEvent]]:
        return {job_id: list(events) for job_id, events in self.logged.items() if job_id in job_ids}

    async def events_after(self, job_id: str, seq: int) -> list[JobEvent]:
        return self.logged[job_id][seq:]

    def become(self, status: JobStatus, job_id: str = "job_1") -> None:
        job, log = self.stored[job_id], self.logged[job_id]
        self.stored[job_id] = replace(job, status=status, version=job.version + 1)
        log.append(JobEvent(job_id, len(log) + 1, status.value, {}, 0))

    async def _read(self) -> None:
        self.num_reads += 1
        await asyncio.sleep(0)  # others run meanwhile, as they do during a query
        if self.is_down:
            raise ServerUnavailable("the database is unavailable")


@pytest.fixture
def store() -> FewJobsStore:
    return FewJobsStore()


@pytest.fixture
def bus() -> MemoryEventBus:
    return MemoryEventBus()


def make_watcher(store: FewJobsStore, bus: MemoryEventBus, poll_seconds: float = 1_000.0) -> JobWatcher:
    return JobWatcher(cast(JobStore, store), bus, WatchedJobs(bus), poll_seconds)


async def types(watcher: JobWatcher, job: Job = QUEUED, after: int = 0) -> list[str]:
    async with asyncio.timeout(HANG_SECONDS):
        return [event.resource.type async for event in watcher.events(job, after)]


def announce(bus: MemoryEventBus, job_id: str = "job_1", **message: str) -> None:
    bus.publish(job_topic(job_id), {"type": "changed", **message})


def progress(bus: MemoryEventBus, step: int) -> None:
    bus.publish(job_topic("job_1"), {"type": "progress", "step": step})


async def settle() -> None:
    """Let every task run until each of them waits for something that is still to come."""
    for _ in range(100):
        await asyncio.sleep(0)


async def take(events: AsyncGenerator[StreamedEvent], count: int) -> list[str]:
    async with asyncio.timeout(HANG_SECONDS):
        return [(await anext(events)).resource.type for _ in range(count)]


async def test_a_lost_message_delays_a_change_by_one_poll(store: FewJobsStore, bus: MemoryEventBus) -> None:
    reading = asyncio.create_task(types(make_watcher(store, bus, poll_seconds=0.01)))
    while store.num_reads < 2:
        await asyncio.sleep(0)
    store.become(JobStatus.SUCCEEDED)  # without a message on the bus
    assert await reading == ["queued", "succeeded"]


async def test_a_message_shows_a_change_at_once(store: FewJobsStore, bus: MemoryEventBus) -> None:
    reading = asyncio.create_task(types(make_watcher(store, bus)))
    await settle()
    store.become(JobStatus.RUNNING)
    store.become(JobStatus.SUCCEEDED)
    announce(bus)
    assert await reading == ["queued", "running", "succeeded"]


async def test_a_change_while_the_job_is_read_is_not_missed(store: FewJobsStore, bus: MemoryEventBus) -> None:
    reading = asyncio.create_task(types(make_watcher(store, bus)))
    while not store.num_reads:
        await asyncio.sleep(0)
    store.become(JobStatus.SUCCEEDED)
    announce(bus)
    assert await reading == ["queued", "succeeded"]


async def test_live_messages_come_between_stored_events(store: FewJobsStore, bus: MemoryEventBus) -> None:
    reading = asyncio.create_task(types(make_watcher(store, bus), after=1))
    await settle()
    progress(bus, 1)
    store.become(JobStatus.FAILED)
    announce(bus)
    assert await reading == ["progress", "failed"]
    assert not bus.subscriptions


async def test_what_is_heard_after_a_change_comes_after_it(store: FewJobsStore, bus: MemoryEventBus) -> None:
    async with aclosing(make_watcher(store, bus).events(QUEUED)) as events:
        assert await take(events, 1) == ["queued"]
        store.become(JobStatus.RUNNING)
        announce(bus)
        progress(bus, 1)  # before the change is read
        assert await take(events, 2) == ["running", "progress"]


async def test_events_end_when_the_job_is_deleted(store: FewJobsStore, bus: MemoryEventBus) -> None:
    reading = asyncio.create_task(types(make_watcher(store, bus, poll_seconds=0.01)))
    while store.num_reads < 2:
        await asyncio.sleep(0)
    store.stored.clear()
    assert await reading == ["queued"]


async def test_a_wait_for_a_job_that_is_deleted_is_an_error(store: FewJobsStore, bus: MemoryEventBus) -> None:
    waiting = asyncio.create_task(make_watcher(store, bus).final(QUEUED))
    await settle()
    store.stored.clear()
    announce(bus)
    with pytest.raises(JobNotFound):
        await asyncio.wait_for(waiting, HANG_SECONDS)


async def test_a_requeued_job_is_watched_until_its_last_final_status(
    store: FewJobsStore, bus: MemoryEventBus
) -> None:
    for status in (JobStatus.FAILED, JobStatus.QUEUED, JobStatus.SUCCEEDED):
        store.become(status)
    expected = ["queued", "failed", "queued", "succeeded"]
    assert await types(make_watcher(store, bus)) == expected
    assert await types(make_watcher(store, bus), store.job) == expected


async def test_a_wait_ends_after_its_seconds(store: FewJobsStore, bus: MemoryEventBus) -> None:
    waiting = make_watcher(store, bus).final(QUEUED, 0.02)
    job = await asyncio.wait_for(waiting, HANG_SECONDS)
    assert job.status is JobStatus.QUEUED
    assert not bus.subscriptions


async def test_who_waits_for_the_end_of_a_queued_job_has_it_read_at_its_end_alone(
    store: FewJobsStore, bus: MemoryEventBus
) -> None:
    watcher = make_watcher(store, bus)
    waiting = asyncio.create_task(watcher.final(QUEUED))
    await settle()
    store.become(JobStatus.RUNNING)
    announce(bus, status="running")
    progress(bus, 1)
    await settle()
    assert store.num_reads == 0
    store.become(JobStatus.SUCCEEDED)
    announce(bus, status="succeeded")
    assert (await asyncio.wait_for(waiting, HANG_SECONDS)).status is JobStatus.SUCCEEDED
    assert store.num_reads == 1


async def test_a_wait_that_ends_early_shows_the_state_that_nobody_waited_for(
    store: FewJobsStore, bus: MemoryEventBus
) -> None:
    waiting = asyncio.create_task(make_watcher(store, bus).final(QUEUED, 0.5))
    await settle()
    store.become(JobStatus.RUNNING)
    announce(bus, status="running")
    assert (await asyncio.wait_for(waiting, HANG_SECONDS)).status is JobStatus.RUNNING


async def test_who_watches_a_job_that_another_waits_for_sees_its_state(
    store: FewJobsStore, bus: MemoryEventBus
) -> None:
    watcher = make_watcher(store, bus)
    waiting = asyncio.create_task(watcher.final(QUEUED))
    await settle()
    store.become(JobStatus.RUNNING)
    announce(bus, status="running")
    watching = asyncio.create_task(types(watcher))
    await settle()
    store.become(JobStatus.SUCCEEDED)
    announce(bus, status="succeeded")
    assert await asyncio.wait_for(watching, HANG_SECONDS) == ["queued", "running", "succeeded"]
    await waiting


async def test_all_followers_of_a_job_share_each_read_of_it(store: FewJobsStore, bus: MemoryEventBus) -> None:
    watcher = make_watcher(store, bus)
    streams = [asyncio.create_task(types(watcher)) for _ in range(200)]
    waits = [asyncio.create_task(watcher.final(QUEUED)) for _ in range(200)]
    await settle()
    for status in (JobStatus.RUNNING, JobStatus.SUCCEEDED):
        store.become(status)
        announce(bus)
        await settle()
    assert await asyncio.gather(*streams) == [["queued", "running", "succeeded"]] * 200
    assert {job.status for job in await asyncio.gather(*waits)} == {JobStatus.SUCCEEDED}
    assert store.num_reads <= 6, "the first state and two changes"


@in_virtual_time
async def test_one_query_a_poll_looks_at_all_followed_jobs() -> None:
    store, bus = FewJobsStore(num_jobs=100), MemoryEventBus()
    watcher = make_watcher(store, bus, poll_seconds=1.0)
    waits = [asyncio.create_task(watcher.final(job, 10.5)) for job in store.stored.values()]
    await asyncio.gather(*waits)
    assert 10 <= store.num_reads <= 12


@in_virtual_time
async def test_nothing_is_read_while_nobody_follows_a_job() -> None:
    store, bus = FewJobsStore(), MemoryEventBus()
    watcher = make_watcher(store, bus, poll_seconds=1.0)
    await watcher.final(QUEUED, 2.5)
    num_reads = store.num_reads
    await asyncio.sleep(60.0)
    assert store.num_reads == num_reads
    store.become(JobStatus.SUCCEEDED)
    assert (await watcher.final(QUEUED)).status is JobStatus.SUCCEEDED, "and again once somebody does"


@in_virtual_time
async def test_followers_wait_on_while_the_database_is_away() -> None:
    store, bus = FewJobsStore(), MemoryEventBus()
    reading = asyncio.create_task(types(make_watcher(store, bus, poll_seconds=1.0)))
    await settle()
    store.is_down = True
    store.become(JobStatus.SUCCEEDED)
    announce(bus)
    await asyncio.sleep(30.0)
    assert not reading.done()
    store.is_down = False
    assert await reading == ["queued", "succeeded"]


async def test_a_slow_follower_holds_up_nobody_and_misses_no_entry_of_the_log(
    store: FewJobsStore, bus: MemoryEventBus
) -> None:
    watcher = make_watcher(store, bus)
    async with aclosing(watcher.events(QUEUED)) as slow:
        assert await take(slow, 1) == ["queued"]
        quick = asyncio.create_task(types(watcher))
        await settle()
        for number in range(50):
            store.become(JobStatus.RUNNING if number % 2 == 0 else JobStatus.QUEUED)
            announce(bus)
            await settle()
            progress(bus, number)
            await settle()
        store.become(JobStatus.SUCCEEDED)
        announce(bus)
        logged = [event.type for event in store.logged["job_1"]]
        seen = await quick
        assert [kind for kind in seen if kind != "progress"] == logged
        assert seen.count("progress") == 50
        rest = [event.resource async for event in slow]
        assert [event.type for event in rest if event.seq is not None] == logged[1:]
        assert [event.seq for event in rest if event.seq is not None] == list(range(2, len(logged) + 1))
        assert len(rest) - len(logged[1:]) <= 32, "what a slow follower may be sent is bounded"


async def test_an_event_is_encoded_once_for_all_its_readers(store: FewJobsStore, bus: MemoryEventBus) -> None:
    watcher = make_watcher(store, bus)
    async with aclosing(watcher.events(QUEUED)) as first, aclosing(watcher.events(QUEUED)) as second:
        for _ in range(3):
            one, two = await anext(first), await anext(second)
            assert one.server_sent is two.server_sent
            store.become(JobStatus.RUNNING)
            announce(bus)


async def test_many_followers_are_woken_some_at_a_time(store: FewJobsStore, bus: MemoryEventBus) -> None:
    """Count the turns that another task gets between the first and the last of them."""
    watcher, turns, woken_at = make_watcher(store, bus), 0, list[int]()

    async def follow() -> None:
        await watcher.final(QUEUED)
        woken_at.append(turns)

    following = [asyncio.create_task(follow()) for _ in range(500)]
    await settle()
    store.become(JobStatus.SUCCEEDED)
    announce(bus)
    while not all(task.done() for task in following):
        turns += 1
        await asyncio.sleep(0)
    assert woken_at[-1] - woken_at[0] >= 10


@in_virtual_time
async def test_a_crowd_gets_fewer_live_events_and_the_newest_one() -> None:
    """Publish as often as a worker reports; the last report must arrive, even if none follows."""
    store, bus = FewJobsStore(), MemoryEventBus()
    watcher = make_watcher(store, bus)
    followers = [asyncio.create_task(_steps(watcher)) for _ in range(2_000)]
    alone = asyncio.create_task(_steps(make_watcher(store, bus)))
    await settle()
    for step in range(60):
        progress(bus, step)
        await asyncio.sleep(0.5)
    await asyncio.sleep(10.0)
    store.become(JobStatus.SUCCEEDED)
    announce(bus)
    steps = await asyncio.gather(*followers)
    assert await alone == list(range(60))
    assert all(seen == steps[0] for seen in steps)
    assert steps[0][-1] == 59
    assert 5 <= len(steps[0]) <= 20


async def _steps(watcher: JobWatcher) -> list[int]:
    return [
        event.resource.data["step"]
        async for event in watcher.events(QUEUED)
        if event.resource.type == "progress"
    ]


async def test_a_late_follower_of_a_job_that_has_just_ended_is_not_left_waiting(
    store: FewJobsStore, bus: MemoryEventBus
) -> None:
    watcher = make_watcher(store, bus)
    async with aclosing(watcher.events(QUEUED)) as slow:
        await take(slow, 1)
        store.become(JobStatus.SUCCEEDED)
        announce(bus)
        await settle()
        assert (await asyncio.wait_for(watcher.final(QUEUED), HANG_SECONDS)).status is JobStatus.SUCCEEDED
        assert await types(watcher) == ["queued", "succeeded"]


async def test_a_follower_that_knows_a_newer_state_has_the_others_see_it(
    store: FewJobsStore, bus: MemoryEventBus
) -> None:
    watcher = make_watcher(store, bus)
    async with aclosing(watcher.events(QUEUED)) as events:
        await take(events, 1)
        store.become(JobStatus.RUNNING)  # the message on the bus is lost
        waiting = asyncio.create_task(watcher.final(store.job))
        assert await take(events, 1) == ["running"]
        waiting.cancel()


async def test_followers_watch_a_job_and_those_who_wait_for_its_end_do_not(
    store: FewJobsStore, bus: MemoryEventBus
) -> None:
    watcher, watched = make_watcher(store, bus), WatchedJobs(bus)
    waiting = asyncio.create_task(watcher.final(QUEUED))
    await settle()
    assert watched.among(["job_1"]) == ()
    following = asyncio.create_task(types(watcher))
    await settle()
    assert watched.among(["job_1"]) == ("job_1",)
    for task in (waiting, following):
        task.cancel()
    await settle()
    assert watched.among(["job_1"]) == ()
