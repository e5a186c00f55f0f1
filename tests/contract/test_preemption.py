"""Preemption: a batch job makes room for an interactive one, and loses nothing by it."""

import pytest
import sqlalchemy as sa

from diffuserve.domain.job import Band, JobStatus
from diffuserve.domain.worker import ReleaseCause
from diffuserve.jobs import schema
from diffuserve.jobs.store import JobStore
from support.store_driver import add_worker, claim_one, complete, events, new_job, release


async def virtual_time(store: JobStore) -> float:
    rows = await store.database.rows(sa.select(schema.tenants.c.vtime).where(schema.tenants.c.id == "ada"))
    return float(rows[0].vtime)


async def test_a_preempted_job_returns_to_its_old_place_as_often_as_that_happens(
    job_store: JobStore,
) -> None:
    worker = await add_worker(job_store)
    job, other = [await job_store.jobs.submit(new_job(band=Band.BATCH)) for _ in range(2)]
    for _ in range(8):  # more often than any limit of retries
        assert (
            await release(job_store, await claim_one(job_store, worker), ReleaseCause.PREEMPTED) == "queued"
        )
    lease = await claim_one(job_store, worker)
    assert lease.job_id == job.id
    assert await complete(job_store, lease) == JobStatus.SUCCEEDED
    log = await job_store.jobs.events_after(job.id)
    assert [event.type for event in log if event.type != "running"] == [
        "queued",
        *["preempted"] * 8,
        "succeeded",
    ]
    assert [event.data for event in log if event.type == "preempted"] == [{"times": n} for n in range(1, 9)]
    assert await events(job_store, other) == ["queued"]


async def test_preempted_time_is_charged_to_nobody(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    await job_store.jobs.submit(new_job("ada", cost_seconds=100.0))
    before = await virtual_time(job_store)
    for _ in range(3):
        lease = await claim_one(job_store, worker)
        assert await virtual_time(job_store) > before
        await release(job_store, lease, ReleaseCause.PREEMPTED)
        assert await virtual_time(job_store) == pytest.approx(before)
    await complete(job_store, await claim_one(job_store, worker), seconds=90.0)
    weight = (await job_store.operations.tenant("ada")).plan.weight
    assert await virtual_time(job_store) == pytest.approx(before + 90.0 / weight)
