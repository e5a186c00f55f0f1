"""Large queues, races with retention, and hostile ids."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from diffuserve.domain.errors import Conflict, JobNotFound, Unauthorized
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.tenant import Plan
from diffuserve.jobs.config import DAY, StoreConfig
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.queue.due import MAX_SWEPT
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.statements import recorded_statements
from support.store_driver import Time, add_worker, claim, claim_one, complete, fail, new_job

_MORE_THAN_ONE_STATEMENT_TAKES = 33_000  # PostgreSQL stops at 32,767 bound values, and so do many SQLites
_MANY = 20_000


@pytest.fixture
def store_config() -> StoreConfig:
    wide = Plan(name="wide", max_running=100_000, max_queued=1_000_000)
    return StoreConfig(plans={"wide": wide}, default_plan="wide")


async def _copy_job(store: JobStore, job_id: str, copies: int) -> None:
    """Queue `copies` more of a job that waits alone, faster than by submitting them."""

    numbers = sa.select(sa.literal(0).label("i")).cte("numbers", recursive=True)
    numbers = numbers.union_all(sa.select(numbers.c.i + 1).where(numbers.c.i < copies - 1))

    def copy(connection: sa.Connection) -> None:
        for table, key in ((schema.jobs, "id"), (schema.ready, "job_id")):
            new = {
                key: sa.literal(f"{job_id}-") + sa.cast(numbers.c.i, sa.Text),
                "seq": table.c.seq + 1 + numbers.c.i,
            }
            values = [new.get(column.name, column) for column in table.c]
            rows = sa.select(*values).join_from(table, numbers, sa.true()).where(table.c[key] == job_id)
            connection.execute(sa.insert(table).from_select(table.c.keys(), rows))
        connection.execute(sa.update(schema.lanes).values(num_ready=copies + 1))
        connection.execute(sa.update(schema.tenants).values(num_queued=copies + 1, next_seq=copies + 10))

    await store.database.write(lambda transaction: copy(transaction.connection))


async def _late_jobs(store: JobStore, clock: FakeClock, num_jobs: int) -> None:
    """Queue jobs that expire now."""
    job = await store.jobs.submit(new_job(expires_in=5.0))
    await _copy_job(store, job.id, num_jobs - 1)
    clock.advance(6.0)


async def _num_by_status(store: JobStore) -> dict[str, int]:
    count = sa.select(schema.jobs.c.status, sa.func.count()).group_by(schema.jobs.c.status)
    return dict(map(tuple, await store.database.rows(count)))


async def test_any_number_of_jobs_may_expire_at_once(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    await _late_jobs(job_store, clock, _MORE_THAN_ONE_STATEMENT_TAKES)
    lasting = await job_store.jobs.submit(new_job("bob"))
    given = await claim(job_store, worker, num_jobs=5) + await claim(job_store, worker, num_jobs=5)
    assert [lease.job_id for lease in given] == [lasting.id]
    assert (await _num_by_status(job_store))["expired"] == 2 * MAX_SWEPT


async def test_all_late_jobs_expire_in_time(job_store: JobStore, clock: FakeClock) -> None:
    await _late_jobs(job_store, clock, 2 * MAX_SWEPT + 1)
    for _ in range(3):
        assert await job_store.operations.lanes()
        await Time(job_store, clock).pass_by(2.0)
    assert await job_store.operations.lanes() == []
    assert await _num_by_status(job_store) == {"expired": 2 * MAX_SWEPT + 1}


async def test_lease_tokens_of_any_number_of_jobs_can_be_read(job_store: JobStore) -> None:
    job = await job_store.jobs.submit(new_job())
    names = [f"job_{i}" for i in range(_MORE_THAN_ONE_STATEMENT_TAKES)]
    assert await job_store.housekeeping.tokens_of([*names, job.id]) == {job.id: frozenset({0})}


async def test_a_job_that_is_requeued_just_before_it_would_be_deleted_is_kept(
    job_store: JobStore, clock: FakeClock
) -> None:
    job = await job_store.jobs.submit(new_job())
    worker = await add_worker(job_store)
    await fail(job_store, await claim_one(job_store, worker), retryable=False)
    clock.advance(DAY + 60)
    outdated = await job_store.housekeeping.find_outdated(10)
    assert outdated == [job.id]
    await job_store.operations.requeue(job.id)
    assert await job_store.housekeeping.forget(outdated) == []
    assert (await job_store.jobs.get(job.id)).status is JobStatus.QUEUED
    lease = await claim_one(job_store, await add_worker(job_store))
    assert await complete(job_store, lease) == JobStatus.SUCCEEDED


async def test_many_outdated_jobs_are_deleted_in_small_transactions(
    job_store: JobStore, clock: FakeClock
) -> None:
    jobs = await asyncio.gather(*(job_store.jobs.submit(new_job()) for _ in range(25)))
    for job in jobs:
        await job_store.jobs.cancel(job.id)
    clock.advance(DAY + 1)
    sizes = []
    while outdated := await job_store.housekeeping.find_outdated(10):
        await job_store.housekeeping.forget(outdated)
        sizes.append(len(outdated))
    assert sizes == [10, 10, 5]
    assert await job_store.database.rows(sa.select(schema.job_events)) == []


@pytest.mark.parametrize("name", ["", "\x00", "job_\x00", "job_' OR '1'='1", "😀" * 50, "x" * 100_000])
async def test_text_that_is_not_a_job_id_is_not_found(job_store: JobStore, name: str) -> None:
    await job_store.jobs.submit(new_job())
    for act in (
        job_store.jobs.get,
        job_store.jobs.cancel,
        job_store.jobs.delete,
        job_store.operations.requeue,
    ):
        with pytest.raises(JobNotFound):
            await act(name)
    assert await job_store.jobs.events_after(name) == []
    assert len(await job_store.jobs.list_jobs()) == 1
    with pytest.raises(Unauthorized):
        await job_store.keys.authenticate(f"dfs_{name}_{name}")


async def test_input_and_metadata_are_stored_unchanged(job_store: JobStore) -> None:
    text = "'; DROP TABLE jobs; --\x00\t\n\\ \U0001f600 \u202e %s :x {} \x7f"
    given = {"prompt": text, "nested": {"list": [1, 2.5, None, True, text]}}
    job = await job_store.jobs.submit(new_job(input=given, metadata=given))
    assert (await job_store.jobs.get(job.id)).input == given
    assert (await job_store.jobs.get(job.id)).metadata == given
    assert (await claim_one(job_store, await add_worker(job_store))).input == given


async def test_a_live_job_cannot_be_requeued(job_store: JobStore) -> None:
    job = await job_store.jobs.submit(new_job())
    await claim_one(job_store, await add_worker(job_store))
    with pytest.raises(Conflict):
        await job_store.operations.requeue(job.id)


def _analyze(transaction: Transaction) -> None:
    """Collect PostgreSQL's statistics, as its autovacuum does in time; SQLite plans without any."""
    if transaction.connection.dialect.name == "postgresql":
        transaction.execute(sa.text("ANALYZE"))


class TestPlans:
    """Plans of the statements of both databases, with many rows in the tables."""

    async def plans(self, store: JobStore, sent: Sequence[tuple[str, Any]]) -> list[str]:
        def explain(connection: sa.Connection) -> list[str]:
            how = "EXPLAIN QUERY PLAN" if connection.dialect.name == "sqlite" else "EXPLAIN"
            found = []
            for statement, values in sent:
                if statement.startswith(("SELECT", "UPDATE", "DELETE")):
                    rows = connection.exec_driver_sql(f"{how} {statement}", values).all()
                    found.append(statement + "\n" + "\n".join(str(row[-1]) for row in rows))
            return found

        return await store.database.read(explain)

    async def test_no_statement_scans_all_queued_jobs(self, job_store: JobStore, clock: FakeClock) -> None:
        first = await job_store.jobs.submit(new_job())
        await _copy_job(job_store, first.id, _MANY)
        await job_store.database.write(_analyze)
        worker = await add_worker(job_store)
        await job_store.housekeeping.reap("reaper")
        async with recorded_statements(job_store) as sent:
            job = await job_store.jobs.submit(new_job(idempotency_key="k"))
            lease, second = await claim(job_store, worker, num_jobs=2)
            await complete(job_store, lease)
            await fail(job_store, second, retryable=True)
            await job_store.jobs.cancel(job.id)
            await job_store.housekeeping.reap("reaper")
            await job_store.jobs.list_jobs(limit=5)
            await job_store.jobs.events_after(job.id)
        plans = await self.plans(job_store, sent)
        assert any("ready_by_lane" in plan for plan in plans)
        for plan in plans:
            for table in ("ready", "jobs"):
                for scan in (f"Seq Scan on {table} ", f"SCAN {table}\n", f"SCAN {table} USING COVERING"):
                    assert scan not in plan + "\n", plan
