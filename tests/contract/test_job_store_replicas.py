"""Replicas: several control planes on one database, concurrent copies of a request, and lost commits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from diffuserve.domain.errors import JobNotFound
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.tenant import PlanOverrides, Role
from diffuserve.domain.workers.worker import Lease
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database.connections import Database, Transaction
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import (
    add_worker,
    claim,
    claim_one,
    complete,
    events,
    fail,
    new_job,
    release,
    send_heartbeat,
)

T = TypeVar("T")


async def test_control_planes_can_open_an_empty_database_together(
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


async def test_two_control_planes_enforce_a_tenants_limits_together(
    job_store: JobStore, other_store: JobStore
) -> None:
    limits = PlanOverrides(max_running=3, max_queued=8)
    await job_store.keys.create(Role.TENANT, tenant_id="ada", overrides=limits)
    stores = [job_store, other_store] * 6
    outcomes = await asyncio.gather(
        *(store.jobs.submit(new_job("ada")) for store in stores), return_exceptions=True
    )
    assert sum(not isinstance(outcome, Exception) for outcome in outcomes) == 8
    workers = [await add_worker(job_store) for _ in stores]
    given = await asyncio.gather(
        *(claim(store, worker, num_jobs=2) for store, worker in zip(stores, workers, strict=True))
    )
    assert sum(len(leases) for leases in given) == 3


async def test_concurrent_submissions_with_the_same_key_store_one_job(
    job_store: JobStore, other_store: JobStore
) -> None:
    new = new_job(idempotency_key="k", fingerprint="f")
    submitted = await asyncio.gather(*(store.jobs.submit(new) for store in [job_store, other_store] * 4))
    assert len({job.id for job in submitted}) == 1
    assert len(await job_store.jobs.list_jobs()) == 1


async def test_concurrent_copies_of_a_claim_get_the_same_leases(
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


async def test_concurrent_completions_finish_a_job_once(job_store: JobStore, other_store: JobStore) -> None:
    job = await job_store.jobs.submit(new_job())
    lease = await claim_one(job_store, await add_worker(job_store))
    statuses = await asyncio.gather(
        *(complete(store, lease) for store in [job_store, job_store, other_store])
    )
    assert set(statuses) == {JobStatus.SUCCEEDED}
    assert await events(job_store, job) == ["queued", "running", "succeeded"]


async def test_a_concurrent_cancel_and_completion_agree_on_the_status(
    job_store: JobStore, other_store: JobStore
) -> None:
    for _ in range(6):
        await job_store.jobs.submit(new_job())
    for lease in await claim(job_store, await add_worker(job_store), num_jobs=6):
        status, _ = await asyncio.gather(complete(job_store, lease), other_store.jobs.cancel(lease.job_id))
        after = await job_store.jobs.get(lease.job_id)
        assert after.status == status
        assert (after.result is not None) == (status == JobStatus.SUCCEEDED)


class LostCommit:
    """A database whose connection is lost right after a commit, for the next `times` commits."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        self._write = database.write
        monkeypatch.setattr(database, "write", self.write)

    async def write(self, work: Callable[[Transaction], T], is_retry: bool = False) -> T:
        outcome = await self._write(work, is_retry)
        if self.times:
            self.times -= 1
            raise ConnectionResetError("connection lost after the commit")
        return outcome


@pytest.fixture
def lost_commit(job_store: JobStore, monkeypatch: pytest.MonkeyPatch) -> LostCommit:
    return LostCommit(job_store.database, monkeypatch)


async def test_a_submission_retried_after_a_lost_commit_stores_one_job(
    job_store: JobStore, lost_commit: LostCommit
) -> None:
    lost_commit.times = 1
    first = await job_store.jobs.submit(new_job())
    keyed = new_job(idempotency_key="k", fingerprint="f")
    lost_commit.times = 1
    second = await job_store.jobs.submit(keyed)
    assert {job.id for job in await job_store.jobs.list_jobs()} == {first.id, second.id}
    assert sum(lane.num_ready for lane in await job_store.operations.lanes()) == 2


async def test_a_claim_retried_after_a_lost_commit_returns_its_leases(
    job_store: JobStore, lost_commit: LostCommit
) -> None:
    for _ in range(4):
        await job_store.jobs.submit(new_job())
    worker = await add_worker(job_store)
    lost_commit.times = 1
    leases = await claim(job_store, worker, num_jobs=2)
    assert len(leases) == 2
    assert (await job_store.operations.workers())[0].num_leases == 2
    assert (await send_heartbeat(job_store, worker, *leases)).lost == ()


_REPORTS: dict[str, tuple[Callable[[JobStore, Lease], Awaitable[Any]], JobStatus]] = {
    "complete": (complete, JobStatus.SUCCEEDED),
    "a final failure": (lambda store, lease: fail(store, lease, retryable=False), JobStatus.FAILED),
    "a failure that is tried again": (
        lambda store, lease: fail(store, lease, retryable=True),
        JobStatus.QUEUED,
    ),
    "release": (release, JobStatus.QUEUED),
}


@pytest.mark.parametrize("name", _REPORTS)
async def test_a_report_retried_after_a_lost_commit_ends_the_attempt_once(
    job_store: JobStore, lost_commit: LostCommit, name: str
) -> None:
    job = await job_store.jobs.submit(new_job())
    lease = await claim_one(job_store, await add_worker(job_store))
    report, expected = _REPORTS[name]
    lost_commit.times = 1
    assert await report(job_store, lease) == expected
    assert (await job_store.jobs.get(job.id)).status == expected
    assert len(await events(job_store, job)) == 3


async def test_cancel_requeue_and_delete_retried_after_a_lost_commit_succeed(
    job_store: JobStore, lost_commit: LostCommit
) -> None:
    job = await job_store.jobs.submit(new_job())
    lost_commit.times = 1
    assert (await job_store.jobs.cancel(job.id)).status is JobStatus.CANCELED
    lost_commit.times = 1
    assert (await job_store.operations.requeue(job.id)).status is JobStatus.QUEUED
    assert await events(job_store, job) == ["queued", "canceled", "requeued"]
    lost_commit.times = 1
    await job_store.jobs.delete(job.id)
    assert await job_store.jobs.list_jobs() == []


async def test_a_delete_retried_after_a_lost_commit_hides_no_job_of_another_tenant(
    job_store: JobStore, lost_commit: LostCommit
) -> None:
    theirs = await job_store.jobs.submit(new_job("bob"))
    mine = await job_store.jobs.submit(new_job("ada"))
    lost_commit.times = 1
    outcomes = await asyncio.gather(
        job_store.jobs.delete(mine.id, "ada"),
        job_store.jobs.delete(theirs.id, "ada"),
        job_store.jobs.delete("job_that_never_was", "ada"),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), JobNotFound, JobNotFound]
    assert [job.id for job in await job_store.jobs.list_jobs()] == [theirs.id]
