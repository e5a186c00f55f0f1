"""Operators see what the store holds, on SQLite and PostgreSQL."""

import re

import sqlalchemy as sa

from diffuserve.api.operators.shares import fair_share_error
from diffuserve.api.operators.snapshot import snapshot_of
from diffuserve.domain.jobs.job import Band, JobError, Phase
from diffuserve.domain.resources.operations import OperationsResource
from diffuserve.domain.workers.worker import Failure, Heartbeat, HeldLease, Lease, WorkerState
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.statements import recorded_statements
from support.store_driver import REPORT, add_worker, claim, complete, new_job


async def snapshot(store: JobStore) -> OperationsResource:
    return snapshot_of(await store.overview.read(), 1, lambda _job_id: None)


async def fail_with(store: JobStore, lease: Lease, error: JobError) -> None:
    failure = Failure(lease_token=lease.lease_token, error=error, actual_seconds=0.5)
    await store.leases.fail(lease.job_id, failure)


async def test_an_empty_server_is_not_ready(job_store: JobStore) -> None:
    seen = await snapshot(job_store)
    assert not seen.ready.is_ready
    assert (seen.workers, seen.lanes, seen.tenants, seen.failures, seen.webhooks) == ((), (), (), (), ())
    assert seen.queue.num_ready == 0
    assert seen.queue.oldest_at is None
    assert [band.id for band in seen.queue.bands] == list(Band)
    assert seen.throughput.per_minute == {"succeeded": 0, "failed": 0, "canceled": 0, "expired": 0}
    assert seen.latency.queue_p50 is None
    assert seen.batch.useful_share is None


async def test_workers_show_their_jobs_and_steps(job_store: JobStore) -> None:
    worker = await add_worker(job_store, name="north")
    await job_store.jobs.submit(new_job())
    (lease,) = await claim(job_store, worker)
    held = HeldLease(job_id=lease.job_id, lease_token=lease.lease_token, phase=Phase.DENOISE, step=3, total=4)
    await job_store.leases.heartbeat(worker, Heartbeat(report=REPORT, held=(held,)))
    seen = await snapshot(job_store)
    assert seen.ready.is_ready
    assert seen.num_workers == {"ready": 1}
    (shown,) = seen.workers
    assert (shown.name, shown.state, shown.num_leases) == ("north", WorkerState.READY, 1)
    (job,) = shown.jobs
    assert (job.id, job.tenant_id, job.phase, job.step, job.total) == (lease.job_id, "ada", "denoise", 3, 4)
    assert seen.queue.num_running == 1


async def test_pools_sum_up_tenants(job_store: JobStore, clock: FakeClock) -> None:
    await add_worker(job_store, "tiny", "small")
    await job_store.jobs.submit(new_job("ada", cost_seconds=2.0))
    clock.advance(5.0)
    await job_store.jobs.submit(new_job("bob", cost_seconds=3.0))
    await job_store.jobs.submit(new_job("bob", model="small", band=Band.BATCH))
    read = await job_store.overview.read()
    pools = {(pool.model, pool.band): pool for pool in read.pools}
    assert {key: pool.num_ready for key, pool in pools.items()} == {
        ("tiny", Band.STANDARD): 2,
        ("small", Band.BATCH): 1,
    }
    tiny = pools["tiny", Band.STANDARD]
    assert (tiny.work_seconds, read.now - tiny.oldest_at) == (5.0, 5.0)


async def test_shares_are_unfair_as_far_as_one_of_those_that_wait_got_more(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    await job_store.jobs.submit(new_job("ada"))
    (lease,) = await claim(job_store, worker)
    await complete(job_store, lease)
    await job_store.jobs.submit(new_job("ada"))
    assert fair_share_error(await job_store.overview.read()) == 0.0, "nobody competes with ada"
    await job_store.jobs.submit(new_job("bob"))
    assert fair_share_error(await job_store.overview.read()) == 0.5, "ada got all, and half is fair"


async def test_lanes_sum_up_models(job_store: JobStore, clock: FakeClock) -> None:
    await add_worker(job_store, "tiny", "small")
    await job_store.jobs.submit(new_job("ada", cost_seconds=2.0))
    clock.advance(5.0)
    await job_store.jobs.submit(new_job("ada", model="small", cost_seconds=3.0))
    await job_store.jobs.submit(new_job("bob", band=Band.BATCH))
    seen = await snapshot(job_store)
    assert [lane.id for lane in seen.lanes] == ["batch/bob", "standard/ada"]
    ada = seen.lanes[1]
    assert (ada.num_ready, ada.work_seconds) == (2, 5.0)
    assert ada.oldest_at is not None
    assert seen.queue.oldest_at == ada.oldest_at < seen.at
    assert (seen.queue.num_ready, seen.queue.work_seconds) == (3, 6.0)
    assert {band.id: band.num_ready for band in seen.queue.bands} == {
        "interactive": 0,
        "standard": 2,
        "batch": 1,
    }


async def test_ends_are_counted_by_outcome_and_tenant(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    for tenant in ("ada", "ada", "ada", "bob"):
        await job_store.jobs.submit(new_job(tenant))
    clock.advance(4.0)
    leases = {lease.job_id: lease for lease in await claim(job_store, worker, 4)}
    clock.advance(2.0)
    by_tenant: dict[str, list[str]] = {"ada": [], "bob": []}
    for job_id in leases:
        by_tenant[(await job_store.jobs.get(job_id)).tenant_id].append(job_id)
    first, second, third = (leases[job_id] for job_id in by_tenant["ada"])
    (bobs,) = (leases[job_id] for job_id in by_tenant["bob"])
    await complete(job_store, first, 3.0)
    await complete(job_store, bobs, 1.0)
    await fail_with(job_store, second, JobError("nan", "the latents are not finite"))
    await fail_with(job_store, third, JobError("busy", "again", retryable=True))
    seen = await snapshot(job_store)
    minute = seen.throughput.per_minute
    assert minute["succeeded"] == 2 * minute["failed"] > 0
    assert (minute["canceled"], minute["expired"]) == (0, 0)
    assert {outcome.id: (outcome.seconds, outcome.num_attempts) for outcome in seen.device_seconds} == {
        "succeeded": (4.0, 2),
        "failed": (0.5, 1),
        "queued": (0.5, 1),
    }
    assert seen.batch.useful_share == 0.8
    assert {
        tenant.id: (tenant.device_seconds, tenant.share, tenant.fair_share) for tenant in seen.tenants
    } == {
        "ada": (4.0, 0.8, 0.5),
        "bob": (1.0, 0.2, 0.5),
    }
    assert seen.latency.num_jobs == 2
    assert seen.latency.queue_p50 is not None
    assert abs(seen.latency.queue_p50 / 4.0 - 1) < 0.1
    assert seen.latency.run_p95 is not None
    assert abs(seen.latency.run_p95 / 2.0 - 1) < 0.1
    (failure,) = seen.failures
    assert (failure.id, failure.count, failure.example_job_id) == ("nan", 1, second.job_id)
    assert failure.message == "the latents are not finite"


async def test_what_is_long_ago_is_not_counted(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    await job_store.jobs.submit(new_job())
    (lease,) = await claim(job_store, worker)
    await complete(job_store, lease, 3.0)
    clock.advance(90.0)
    seen = await snapshot(job_store)
    assert seen.throughput.per_minute["succeeded"] == 0
    assert seen.latency.num_jobs == 1
    clock.advance(300.0)
    seen = await snapshot(job_store)
    assert seen.latency.num_jobs == 0
    assert (seen.device_seconds, seen.tenants) == ((), ())


async def test_a_silent_worker_is_lost_and_its_attempt_is_counted(
    job_store: JobStore, clock: FakeClock
) -> None:
    worker = await add_worker(job_store)
    await job_store.jobs.submit(new_job())
    await claim(job_store, worker)
    clock.advance(job_store.config.lease_seconds + 1)
    await job_store.housekeeping.reap("here")
    clock.advance(job_store.config.lease_seconds + 1)
    await job_store.housekeeping.reap("here")
    seen = await snapshot(job_store)
    assert seen.workers[0].state is WorkerState.LOST
    assert seen.workers[0].jobs == ()
    assert {outcome.id: outcome.num_attempts for outcome in seen.device_seconds} == {"lost": 1}
    assert seen.queue.num_ready + seen.queue.num_delayed == 1


async def statements_of_a_view(store: JobStore) -> list[str]:
    """Return the statements that a view of the server executes."""
    async with recorded_statements(store) as sent:
        await store.overview.read()
    return [statement for statement, _ in sent]


async def test_a_view_reads_no_more_of_a_longer_queue(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    await job_store.jobs.submit(new_job())
    short = await statements_of_a_view(job_store)
    for _ in range(30):
        await job_store.jobs.submit(new_job())
    await claim(job_store, worker, 5)
    assert await statements_of_a_view(job_store) == short
    read = await job_store.overview.read()
    assert (len(read.lanes), read.lanes[0].num_ready, len(read.running)) == (1, 26, 5)
    assert not any(" FROM ready" in statement for statement in short)


async def test_a_view_scans_no_large_table(job_store: JobStore) -> None:
    statements = [text for text in await statements_of_a_view(job_store) if text.startswith("SELECT")]
    large = ("jobs", "ready", "job_events", "webhook_deliveries", "tallies", "webhook_endpoints")

    def plans(connection: sa.Connection) -> str:
        if connection.dialect.name == "sqlite":
            found = [
                connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", (0,) * text.count("?")).all()
                for text in statements
            ]
            return " ".join(row.detail for rows in found for row in rows)
        connection.exec_driver_sql("SET enable_seqscan = off")  # which a table without rows is cheap for
        plain = [re.sub(r"\$\d+(::DOUBLE PRECISION|::\w+)?", "'0'", text) for text in statements]
        found = [connection.exec_driver_sql(f"EXPLAIN {text}").all() for text in plain]
        connection.exec_driver_sql("RESET enable_seqscan")
        return " ".join(row[0] for rows in found for row in rows)

    plan = await job_store.database.read(plans)
    assert "jobs_by_end" in plan
    assert "webhook_deliveries_failing" in plan
    assert not [table for table in large if f"SCAN {table}" in plan or f"Seq Scan on {table}" in plan]
