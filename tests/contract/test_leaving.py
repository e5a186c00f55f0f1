"""Idle workers leave while there are more than there should be, on SQLite and PostgreSQL."""

import asyncio

import pytest

from diffuserve.domain.errors import WorkerNotFound
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import add_worker, claim, claim_one, complete, new_job, send_heartbeat

TWO = {"tiny": 2}


async def test_of_many_that_ask_at_once_as_many_leave_as_are_too_many(job_store: JobStore) -> None:
    ids = [await add_worker(job_store) for _ in range(5)]
    answers = await asyncio.gather(*(job_store.leases.leave(worker, TWO) for worker in ids))
    assert sorted(answers) == [False, False, True, True, True]


async def test_the_least_stay_even_if_none_is_needed(job_store: JobStore) -> None:
    ids = [await add_worker(job_store) for _ in range(3)]
    answers = [await job_store.leases.leave(worker, {}, least=2) for worker in ids]
    assert answers == [True, False, False]


async def test_a_worker_that_holds_a_job_stays(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    await job_store.jobs.submit(new_job())
    lease = await claim_one(job_store, worker)
    assert not await job_store.leases.leave(worker, {})
    await complete(job_store, lease)
    assert await job_store.leases.leave(worker, {})


async def test_a_worker_that_leaves_gets_no_more_jobs_and_is_told_to_drain(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    assert await job_store.leases.leave(worker, {})
    await job_store.jobs.submit(new_job())
    assert await claim(job_store, worker) == []
    assert (await send_heartbeat(job_store, worker)).drain


async def test_a_worker_whose_answer_was_lost_gets_it_again(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    assert await job_store.leases.leave(worker, {})
    assert await job_store.leases.leave(worker, TWO)


async def test_lost_workers_and_those_of_other_models_do_not_suffice(
    job_store: JobStore, clock: FakeClock
) -> None:
    await add_worker(job_store)
    clock.advance(3_600.0)
    worker = await add_worker(job_store)
    await add_worker(job_store, "small")
    assert not await job_store.leases.leave(worker, {"tiny": 1})


async def test_a_worker_of_two_models_is_needed_by_either(job_store: JobStore) -> None:
    worker = await add_worker(job_store, "tiny", "small")
    await add_worker(job_store, "tiny")
    assert not await job_store.leases.leave(worker, {"tiny": 1, "small": 1})
    await add_worker(job_store, "small")
    assert await job_store.leases.leave(worker, {"tiny": 1, "small": 1})


async def test_an_unknown_worker_is_told_so(job_store: JobStore) -> None:
    with pytest.raises(WorkerNotFound, match="register again"):
        await job_store.leases.leave("w-unknown", {})
