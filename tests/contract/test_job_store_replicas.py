"""Several control planes on one database, callers that ask twice at once, and answers that are lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import pytest

from diffuserve.domain.job import JobStatus
from diffuserve.domain.tenant import PlanOverrides, Role
from diffuserve.domain.worker import Lease
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import Database, Transaction
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import (
    add_worker,
    beat,
    claim,
    claim_one,
    complete,
    events,
    fail,
    new_job,
    release,
)

T = TypeVar("T")


@pytest.fixture
async def other_store(
    job_store: JobStore, database_url: str, store_config: StoreConfig, clock: FakeClock
) -> AsyncIterator[JobStore]:
    """A second control plane on the same database."""
    store = JobStore(database_url, MemoryEventBus(), store_config, clock)
    await store.open()
    yield store
    await store.close()


async def test_control_planes_may_open_an_empty_database_together(
    database_url: str, store_config: StoreConfig, clock: FakeClock
) -> None:
    stores = [JobStore(database_url, MemoryEventBus(), store_config, clock) for _ in range(3)]
    await asyncio.gather(*(store.open() for store in stores))
    job = await stores[0].jobs.submit(new_job())
    assert [(await store.jobs.get(job.id)).id for store in stores] == [job.id] * 3
    for store in stores:
        await store.close()


async def test_no_job_is_leased_twice_by_two_control_planes(
    job_store: JobStore, other_store: JobStore
) -> None:
    jobs = {(await job_store.jobs.submit(new_job())).id for _ in range(12)}
    workers = [await add_worker(job_store) for _ in range(6)]
    stores = [job_store, other_store] * 3
    given = await asyncio.gather(
        *(claim(store, worker, num_jobs=3) for store, worker in zip(stores, workers, strict=True))
    )
    leases = [lease for each in given for lease in each]
    assert len(leases) == len(jobs)
    assert {lease.job_id for lease in leases} == jobs


async def test_two_control_planes_keep_a_tenants_limits_together(
    job_store: JobStore, other_store: JobStore
) -> None:
    limits = PlanOverrides(max_running=3, max_queued=8)
    await job_store.keys.create(Role.TENANT, tenant_id="ada", overrides=limits)
    stores = [job_store, other_store] * 6
    answers = await asyncio.gather(
        *(store.jobs.submit(new_job("ada")) for store in stores), return_exceptions=True
    )
    assert sum(not isinstance(answer, Exception) for answer in answers) == 8
    workers = [await add_worker(job_store) for _ in stores]
    given = await asyncio.gather(
        *(claim(store, worker, num_jobs=2) for store, worker in zip(stores, workers, strict=True))
    )
    assert sum(len(leases) for leases in given) == 3


async def test_the_same_key_sent_twice_at_once_gives_one_job(
    job_store: JobStore, other_store: JobStore
) -> None:
    new = new_job(idempotency_key="k", fingerprint="f")
    answers = await asyncio.gather(*(store.jobs.submit(new) for store in [job_store, other_store] * 4))
    assert len({job.id for job in answers}) == 1
    assert len(await job_store.jobs.list_jobs()) == 1


async def test_the_same_claim_sent_twice_at_once_gets_one_set_of_leases(
    job_store: JobStore, other_store: JobStore
) -> None:
    for _ in range(12):
        await job_store.jobs.submit(new_job())
    worker = await add_worker(job_store)
    given = await asyncio.gather(
        *(claim(store, worker, num_jobs=2, claim_id="again") for store in [job_store, job_store, other_store])
    )
    assert [len(leases) for leases in given] == [2, 2, 2]
    assert given[0] == given[1] == given[2]


async def test_a_job_that_is_ended_twice_at_once_ends_once(
    job_store: JobStore, other_store: JobStore
) -> None:
    job = await job_store.jobs.submit(new_job())
    lease = await claim_one(job_store, await add_worker(job_store))
    answers = await asyncio.gather(*(complete(store, lease) for store in [job_store, job_store, other_store]))
    assert set(answers) == {JobStatus.SUCCEEDED}
    assert await events(job_store, job) == ["queued", "running", "succeeded"]


async def test_a_cancel_and_the_end_of_a_job_agree_on_one_status(
    job_store: JobStore, other_store: JobStore
) -> None:
    for _ in range(6):
        await job_store.jobs.submit(new_job())
    for lease in await claim(job_store, await add_worker(job_store), num_jobs=6):
        said, _ = await asyncio.gather(complete(job_store, lease), other_store.jobs.cancel(lease.job_id))
        after = await job_store.jobs.get(lease.job_id)
        assert after.status == said
        assert (after.result is not None) == (said == JobStatus.SUCCEEDED)


class LostAnswer:
    """A database that commits and then loses the connection, as often as `times` says."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        self._write = database.write
        monkeypatch.setattr(database, "write", self.write)

    async def write(self, work: Callable[[Transaction], T], is_retry: bool = False) -> T:
        answer = await self._write(work, is_retry)
        if self.times:
            self.times -= 1
            raise ConnectionResetError("committed, and never heard of")
        return answer


@pytest.fixture
def lost_answer(job_store: JobStore, monkeypatch: pytest.MonkeyPatch) -> LostAnswer:
    return LostAnswer(job_store.database, monkeypatch)


async def test_a_submit_whose_commit_was_not_heard_of_stores_one_job(
    job_store: JobStore, lost_answer: LostAnswer
) -> None:
    lost_answer.times = 1
    job = await job_store.jobs.submit(new_job())
    keyed = new_job(idempotency_key="k", fingerprint="f")
    lost_answer.times = 1
    other = await job_store.jobs.submit(keyed)
    assert {one.id for one in await job_store.jobs.list_jobs()} == {job.id, other.id}
    assert sum(lane.num_ready for lane in await job_store.operations.lanes()) == 2


async def test_a_claim_whose_commit_was_not_heard_of_gives_its_leases(
    job_store: JobStore, lost_answer: LostAnswer
) -> None:
    for _ in range(4):
        await job_store.jobs.submit(new_job())
    worker = await add_worker(job_store)
    lost_answer.times = 1
    leases = await claim(job_store, worker, num_jobs=2)
    assert len(leases) == 2
    assert (await job_store.operations.workers())[0].num_leases == 2
    assert (await beat(job_store, worker, *leases)).lost == ()


_LAST_WORDS: dict[str, tuple[Callable[[JobStore, Lease], Awaitable[Any]], JobStatus]] = {
    "complete": (complete, JobStatus.SUCCEEDED),
    "a final failure": (lambda store, lease: fail(store, lease, retryable=False), JobStatus.FAILED),
    "a failure that is tried again": (
        lambda store, lease: fail(store, lease, retryable=True),
        JobStatus.QUEUED,
    ),
    "release": (release, JobStatus.QUEUED),
}


@pytest.mark.parametrize("word", _LAST_WORDS)
async def test_a_last_word_whose_commit_was_not_heard_of_is_answered_once(
    job_store: JobStore, lost_answer: LostAnswer, word: str
) -> None:
    job = await job_store.jobs.submit(new_job())
    lease = await claim_one(job_store, await add_worker(job_store))
    say, expected = _LAST_WORDS[word]
    lost_answer.times = 1
    assert await say(job_store, lease) == expected
    assert (await job_store.jobs.get(job.id)).status == expected
    assert len(await events(job_store, job)) == 3


async def test_what_clients_ask_is_answered_though_its_commit_was_not_heard_of(
    job_store: JobStore, lost_answer: LostAnswer
) -> None:
    job = await job_store.jobs.submit(new_job())
    lost_answer.times = 1
    assert (await job_store.jobs.cancel(job.id)).status is JobStatus.CANCELED
    lost_answer.times = 1
    assert (await job_store.operations.requeue(job.id)).status is JobStatus.QUEUED
    assert await events(job_store, job) == ["queued", "canceled", "requeued"]
    lost_answer.times = 1
    await job_store.jobs.delete(job.id)
    assert await job_store.jobs.list_jobs() == []
