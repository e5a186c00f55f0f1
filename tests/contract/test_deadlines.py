"""Deadlines of jobs, on SQLite and PostgreSQL."""

import asyncio

import pytest

from diffuserve.domain.errors import DeadlineUnreachable
from diffuserve.domain.jobs.job import Band, Job, JobStatus
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import add_worker, claim, claim_one, fail, new_job

_LEAD = 30.0


async def claimed(store: JobStore, worker: str, num_jobs: int) -> list[str]:
    return [lease.job_id for lease in await claim(store, worker, num_jobs=num_jobs)]


async def test_a_job_close_to_its_deadline_goes_before_others_of_its_tenant(
    job_store: JobStore, clock: FakeClock
) -> None:
    worker = await add_worker(job_store)
    first, second = [await job_store.jobs.submit(new_job()) for _ in range(2)]
    late = await job_store.jobs.submit(new_job(finish_in=101.0, cost_seconds=1.0))
    later = await job_store.jobs.submit(new_job(finish_in=121.0, cost_seconds=1.0))
    clock.advance(100.0 - _LEAD - 1.0)
    assert await claimed(job_store, worker, 1) == [first.id]
    clock.advance(22.0)
    assert await claimed(job_store, worker, 4) == [late.id, later.id, second.id]


async def test_the_closest_deadline_goes_first(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    plain = await job_store.jobs.submit(new_job())
    jobs = [await job_store.jobs.submit(new_job(finish_in=seconds)) for seconds in (20.0, 10.0, 15.0, 10.0)]
    order = [jobs[1].id, jobs[3].id, jobs[2].id, jobs[0].id, plain.id]
    assert await claimed(job_store, worker, 5) == order


async def test_deadlines_take_nothing_from_other_tenants(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    hurried = {(await job_store.jobs.submit(new_job("ada", finish_in=20.0))).id for _ in range(8)}
    patient = {(await job_store.jobs.submit(new_job("bob"))).id for _ in range(4)}
    urgent = await job_store.jobs.submit(new_job("cy", band=Band.INTERACTIVE))
    order = await claimed(job_store, worker, 9)
    assert order[0] == urgent.id
    assert len(patient & set(order)) == 4, "each second job is the other tenant's"
    assert len(hurried & set(order)) == 4


async def test_a_job_that_can_no_longer_be_in_time_expires(job_store: JobStore, clock: FakeClock) -> None:
    job = await job_store.jobs.submit(new_job(finish_in=10.0, cost_seconds=4.0))
    worker = await add_worker(job_store)
    clock.advance(5.9)
    await job_store.housekeeping.reap("here")
    assert (await job_store.jobs.get(job.id)).status is JobStatus.QUEUED
    clock.advance(0.2)
    assert await claim(job_store, worker) == []
    ended = await job_store.jobs.get(job.id)
    assert (ended.status, ended.started_at) == (JobStatus.EXPIRED, None)
    assert (await job_store.jobs.events_after(job.id))[-1].data == {"cause": "deadline"}


async def test_another_attempt_is_not_begun_in_vain(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    job = await job_store.jobs.submit(new_job(finish_in=10.0, cost_seconds=4.0))
    lease = await claim_one(job_store, worker)
    clock.advance(8.0)
    await fail(job_store, lease, retryable=True)
    clock.advance(60.0)
    for _ in range(2):  # first its pause is over, and then its time
        assert await claim(job_store, worker) == []
    assert (await job_store.jobs.get(job.id)).status is JobStatus.EXPIRED


async def test_best_effort_hurries_and_does_not_expire(job_store: JobStore, clock: FakeClock) -> None:
    plain = await job_store.jobs.submit(new_job())
    job = await job_store.jobs.submit(new_job(finish_in=10.0, cost_seconds=4.0, best_effort=True))
    clock.advance(60.0)
    worker = await add_worker(job_store)
    assert await claimed(job_store, worker, 2) == [job.id, plain.id]


async def test_a_requeued_job_has_no_deadline_any_more(job_store: JobStore, clock: FakeClock) -> None:
    job = await job_store.jobs.submit(new_job(finish_in=10.0))
    clock.advance(10.0)
    await job_store.housekeeping.reap("here")
    await job_store.jobs.submit(new_job())
    await job_store.operations.requeue(job.id)
    worker = await add_worker(job_store)
    lease = next(lease for lease in await claim(job_store, worker, 2) if lease.job_id == job.id)
    await fail(job_store, lease, retryable=True)
    clock.advance(60.0)
    assert await claimed(job_store, worker, 1) == [job.id]
    assert (await job_store.jobs.get(job.id)).finish_by is None


async def test_what_would_probably_be_missed_is_refused(job_store: JobStore) -> None:
    await add_worker(job_store)
    for _ in range(5):
        await job_store.jobs.submit(new_job(cost_seconds=10.0))
    await job_store.jobs.check_deadline(new_job(cost_seconds=1.0, finish_in=70.0))
    await job_store.jobs.check_deadline(new_job(cost_seconds=1.0, finish_in=5.0, best_effort=True))
    with pytest.raises(DeadlineUnreachable, match=r"in 20\.0 s.* likely take") as raised:
        await job_store.jobs.check_deadline(new_job(cost_seconds=1.0, finish_in=20.0))
    assert 20.0 < (raised.value.eta_s_low or 0) < 51.0 < (raised.value.eta_s_high or 0)


async def test_without_workers_only_the_job_itself_is_known_to_take_time(job_store: JobStore) -> None:
    await job_store.jobs.submit(new_job(cost_seconds=10.0))
    await job_store.jobs.check_deadline(new_job(cost_seconds=3.0, finish_in=3.5))
    with pytest.raises(DeadlineUnreachable) as raised:
        await job_store.jobs.check_deadline(new_job(cost_seconds=3.0, finish_in=2.5))
    assert raised.value.eta_s_low is None


async def test_jobs_that_are_submitted_together_do_not_count_on_the_same_room(job_store: JobStore) -> None:
    """Sixty with 12 s come at once: as many are accepted as if each had come after the one before."""
    await add_worker(job_store)
    soon = new_job(cost_seconds=1.0, finish_in=12.0)
    assert await job_store.jobs.estimate(await job_store.jobs.submit(new_job(cost_seconds=0.1)))
    given = await asyncio.gather(
        *(job_store.jobs.submit_in_time(soon) for _ in range(60)), return_exceptions=True
    )
    accepted = [each for each in given if isinstance(each, Job)]
    assert all(isinstance(each, Job | DeadlineUnreachable) for each in given)
    assert 7 <= len(accepted) <= 9
    with pytest.raises(DeadlineUnreachable):
        await job_store.jobs.submit_in_time(soon)
