"""The use of the devices is counted once, by day, on SQLite and PostgreSQL."""

from datetime import date, timedelta

import pytest
import sqlalchemy as sa

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import Artifact, JobResult
from diffuserve.domain.resources.usage import UsageField, UsageResource
from diffuserve.domain.workers.machines import MachineKind
from diffuserve.domain.workers.worker import Completion, Heartbeat, Lease
from diffuserve.jobs.database import count_tables, usage
from diffuserve.jobs.database.usage import day_of
from diffuserve.jobs.reads import usage_reader
from diffuserve.jobs.reads.usage_reader import UsageQuery
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import (
    REPORT,
    Time,
    add_worker,
    claim_one,
    complete,
    fail,
    hand_over,
    new_job,
    send_heartbeat,
)

EVERYTHING = tuple(UsageField)
TWO_IMAGES = tuple(
    Artifact(
        name=f"{index}{role}.png",
        content_type="image/png",
        size_bytes=1,
        sha256="aa" * 32,
        width=1,
        height=1,
        index=index,
        role=role,
    )
    for index in (0, 1)
    for role in ("image", "thumbnail")
)


async def used(store: JobStore, *group_by: UsageField, tenant_id: str | None = None) -> UsageResource:
    query = UsageQuery(group_by=group_by or EVERYTHING, tenant_id=tenant_id)
    return await store.usage.read(query, is_operator=tenant_id is None)


async def run_job(
    store: JobStore, clock: FakeClock, worker: str, tenant: str = "ada", seconds: float = 1.0
) -> Lease:
    await store.jobs.submit(new_job(tenant))
    lease = await claim_one(store, worker)
    clock.advance(seconds)
    await complete(store, lease, seconds)
    return lease


async def test_an_attempt_is_counted_once_however_often_it_is_reported(
    job_store: JobStore, clock: FakeClock
) -> None:
    worker = await add_worker(job_store, price_per_hour=3_600.0)
    await job_store.jobs.submit(new_job())
    lease = await claim_one(job_store, worker)
    result = JobResult(artifacts=TWO_IMAGES)
    clock.advance(2.5)
    done = Completion(lease_token=lease.lease_token, result=result, actual_seconds=2.5)
    for _ in range(3):
        assert await job_store.leases.complete(lease.job_id, done) == "succeeded"
    (row,) = (await used(job_store)).data
    assert (row.day, row.tenant_id, row.model) == (day_of(clock.now).isoformat(), "ada", "tiny")
    assert (row.kind, row.outcome) == (MachineKind.ON_DEMAND, "succeeded")
    assert (row.num_attempts, row.num_images, row.seconds, row.cost) == (1, 2, 2.5, 2.5)


async def test_tenants_and_overhead_add_up_to_the_workers_hours(
    job_store: JobStore, clock: FakeClock
) -> None:
    """Play what can become of an attempt on machines of both kinds; whatever it is, no second is missing."""
    steady = await add_worker(job_store, price_per_hour=7.2)
    spot = await add_worker(job_store, price_per_hour=1.8, is_spot=True)
    time = Time(job_store, clock, step=1.0)
    await run_job(job_store, clock, steady, "ada", 4.0)
    await run_job(job_store, clock, spot, "bob", 3.0)
    await job_store.jobs.submit(new_job("ada"))
    await fail(job_store, await claim_one(job_store, steady), retryable=False)
    await job_store.jobs.submit(new_job("bob"))
    lease = await claim_one(job_store, steady)
    clock.advance(2.0)
    await hand_over(job_store, lease, 2.0)
    for _ in range(10):
        await time.pass_by(2.0)
        await send_heartbeat(job_store, steady)
        await send_heartbeat(job_store, spot)
    await job_store.leases.deregister(spot)
    clock.advance(6.0)
    await job_store.leases.deregister(steady)
    found = await used(job_store)
    assert found.fleet is not None
    machines = {machine.kind: (machine.seconds, machine.cost) for machine in found.fleet.machines}
    assert machines == {MachineKind.ON_DEMAND: (35.0, 0.07), MachineKind.SPOT: (29.0, 0.0145)}
    assert {(row.tenant_id, row.outcome): row.seconds for row in found.data} == {
        ("ada", "succeeded"): 4.0,
        ("ada", "failed"): 0.0,
        ("bob", "succeeded"): 3.0,
        ("bob", "denoised"): 2.0,
    }
    assert found.useful.seconds == sum(row.seconds for row in found.data)
    assert found.useful.seconds + found.fleet.overhead.seconds == 64.0
    assert found.useful.cost + found.fleet.overhead.cost == pytest.approx(0.0845)
    assert [times.model for times in found.fleet.run_times] == ["tiny"]


async def test_a_worker_that_vanished_is_counted_up_to_its_last_heartbeat(
    job_store: JobStore, clock: FakeClock
) -> None:
    worker = await add_worker(job_store)
    await job_store.jobs.submit(new_job())
    await claim_one(job_store, worker)
    clock.advance(5.0)
    await send_heartbeat(job_store, worker)
    await Time(job_store, clock).pass_by(2 * job_store.config.lease_seconds)
    found = await used(job_store, UsageField.OUTCOME)
    assert [(row.outcome, row.seconds) for row in found.data] == [("lost", 0.0)]
    assert found.fleet is not None
    assert found.fleet.machines[0].seconds == 5.0
    assert found.fleet.overhead.seconds == 5.0


async def test_a_clock_that_was_set_back_takes_no_time_away(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    clock.advance(4.0)
    await job_store.leases.heartbeat(worker, Heartbeat(report=REPORT))
    clock.advance(-3.0)
    await job_store.leases.heartbeat(worker, Heartbeat(report=REPORT))
    found = await used(job_store)
    assert found.fleet is not None
    assert found.fleet.machines[0].seconds == 4.0


async def test_a_tenant_sees_its_own_use_alone(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    await run_job(job_store, clock, worker, "ada", 4.0)
    await run_job(job_store, clock, worker, "bob", 3.0)
    found = await used(job_store, UsageField.MODEL, tenant_id="bob")
    assert [(row.model, row.tenant_id, row.seconds) for row in found.data] == [("tiny", None, 3.0)]
    assert (found.useful.seconds, found.fleet) == (3.0, None)


async def test_days_are_told_apart_and_chosen(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    first = day_of(clock.now)
    for seconds in (1.0, 2.0, 3.0):
        await run_job(job_store, clock, worker, seconds=seconds)
        clock.advance(86_400.0 - seconds)
    every = await used(job_store, UsageField.DAY)
    days = [(first + timedelta(days=number)).isoformat() for number in range(3)]
    assert [(row.day, row.seconds) for row in every.data] == list(zip(days, (1.0, 2.0, 3.0), strict=True))
    second = first + timedelta(days=1)
    query = UsageQuery(since=second, until=second, group_by=(UsageField.DAY,))
    assert [row.seconds for row in (await job_store.usage.read(query, is_operator=True)).data] == [2.0]


async def test_days_in_the_wrong_order_and_too_many_rows_are_refused(
    job_store: JobStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backwards = UsageQuery(since=date(2026, 2, 1), until=date(2026, 1, 1))
    with pytest.raises(InvalidParams, match="since='2026-02-01': must not be later than 2026-01-01"):
        await job_store.usage.read(backwards, is_operator=True)
    worker = await add_worker(job_store)
    await run_job(job_store, clock, worker, "ada")
    await run_job(job_store, clock, worker, "bob")
    monkeypatch.setattr(usage_reader, "MAX_ROWS", 1)
    assert len((await used(job_store, UsageField.MODEL)).data) == 1
    with pytest.raises(InvalidParams, match="more than 1 rows; ask for fewer days or fields"):
        await used(job_store, UsageField.TENANT_ID)


async def test_use_is_kept_for_a_year(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    await run_job(job_store, clock, worker)
    await send_heartbeat(job_store, worker)
    for days, left in ((usage.MEMORY.days, 1), (1, 0)):
        clock.advance(days * 86_400.0)
        await job_store.housekeeping.find_outdated(10)
        for table in (count_tables.usage, count_tables.worker_time):
            count = await job_store.database.rows(sa.select(sa.func.count()).select_from(table))
            assert count[0][0] == left, table.name
