"""The store tells the work of each pool, on SQLite and PostgreSQL."""

from diffuserve.domain.jobs.job import Phase
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.workers.worker import Heartbeat, HeldLease
from diffuserve.jobs.policy.scaling import BUCKET_SECONDS, HOUR, WEEK, bucket_of
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.statements import recorded_statements
from support.store_driver import REPORT, add_worker, claim_one, new_job


async def test_a_pool_without_jobs_has_no_work(job_store: JobStore) -> None:
    assert (await job_store.demand.read()).by_model == {}
    await add_worker(job_store)
    demand = (await job_store.demand.read()).by_model["tiny"]
    assert (demand.queued_seconds, demand.running_seconds, demand.accepted) == (0.0, 0.0, {})


async def test_work_is_told_by_model_and_by_what_runs_already(job_store: JobStore) -> None:
    worker = await add_worker(job_store, "tiny", "small")
    await job_store.jobs.submit(new_job(cost_seconds=8.0))
    await job_store.jobs.submit(new_job("bob", cost_seconds=3.0))
    lease = await claim_one(job_store, worker)
    await job_store.jobs.submit(new_job(model="small", cost_seconds=5.0))
    left = 11.0 - lease.cost_seconds
    by_model = (await job_store.demand.read()).by_model
    assert by_model["tiny"].queued_seconds == left
    assert by_model["tiny"].running_seconds == lease.cost_seconds
    assert by_model["small"].queued_seconds == 5.0


async def test_running_work_shrinks_with_its_steps(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    await job_store.jobs.submit(new_job(cost_seconds=8.0))
    lease = await claim_one(job_store, worker)
    held = HeldLease(job_id=lease.job_id, lease_token=lease.lease_token, phase=Phase.DENOISE, step=3, total=4)
    await job_store.leases.heartbeat(worker, Heartbeat(report=REPORT, held=(held,)))
    assert (await job_store.demand.read()).by_model["tiny"].running_seconds == 2.0


async def test_a_load_takes_what_workers_measured(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    fit = CostFit((0.1, 0.0), (0.1, 0.0, 0.0, 0.0), (0.1, 0.0), load_seconds=42.0)
    await job_store.leases.heartbeat(worker, Heartbeat(report=REPORT, fits={"tiny": fit}))
    assert (await job_store.demand.read()).by_model["tiny"].load_seconds == 42.0


async def test_accepted_work_is_counted_by_five_minutes(job_store: JobStore, clock: FakeClock) -> None:
    await add_worker(job_store)
    start = bucket_of(clock())
    clock.advance(start + BUCKET_SECONDS - clock())
    for seconds in (2.0, 3.0):
        await job_store.jobs.submit(new_job(cost_seconds=seconds))
    clock.advance(float(BUCKET_SECONDS))
    await job_store.jobs.submit(new_job(cost_seconds=4.0))
    first = start + BUCKET_SECONDS
    demand = (await job_store.demand.read()).by_model["tiny"]
    assert demand.accepted == {first: 5.0, first + BUCKET_SECONDS: 4.0}
    assert demand.known_since == first


async def test_the_same_hour_of_earlier_weeks_is_read_and_other_hours_are_not(
    job_store: JobStore, clock: FakeClock
) -> None:
    await add_worker(job_store)
    await job_store.jobs.submit(new_job(cost_seconds=2.0))
    accepted_at = bucket_of(clock())
    clock.advance(float(WEEK))
    assert (await job_store.demand.read()).by_model["tiny"].accepted == {accepted_at: 2.0}
    clock.advance(2.0 * HOUR)
    assert (await job_store.demand.read()).by_model["tiny"].accepted == {}


async def test_work_of_more_than_four_weeks_ago_is_forgotten(job_store: JobStore, clock: FakeClock) -> None:
    await add_worker(job_store)
    await job_store.jobs.submit(new_job(cost_seconds=2.0))
    clock.advance(5.0 * WEEK)
    await job_store.housekeeping.find_outdated(10)
    clock.advance(-4.0 * WEEK)  # when it would be read
    assert (await job_store.demand.read()).by_model["tiny"].accepted == {}


async def test_a_reading_takes_as_many_statements_for_many_jobs_as_for_one(job_store: JobStore) -> None:
    await add_worker(job_store)
    await job_store.jobs.submit(new_job())
    async with recorded_statements(job_store) as few:
        await job_store.demand.read()
    for number in range(20):
        await job_store.jobs.submit(new_job(f"tenant-{number}"))
    async with recorded_statements(job_store) as many:
        await job_store.demand.read()
    assert len(many) == len(few)
