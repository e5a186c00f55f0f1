"""device-seconds that a tenant may have in the queue."""

import asyncio

import pytest

from diffuserve.domain.errors import QueueFull, TooLarge
from diffuserve.domain.tenant import Plan, PlanOverrides, Role
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from support.store_driver import add_worker, claim_one, new_job


@pytest.fixture
def store_config() -> StoreConfig:
    return StoreConfig(
        plans={"small": Plan(name="small", max_queued=5, max_queued_seconds=10)}, default_plan="small"
    )


async def test_a_tenant_queues_as_many_device_seconds_as_its_plan_allows(job_store: JobStore) -> None:
    for _ in range(2):
        await job_store.jobs.submit(new_job(cost_seconds=4.0))
    with pytest.raises(QueueFull, match="device-seconds") as refused:
        await job_store.jobs.submit(new_job(cost_seconds=4.0))
    assert refused.value.retry_after is not None
    await job_store.jobs.submit(new_job(cost_seconds=2.0))
    await job_store.jobs.submit(new_job("bob", cost_seconds=4.0))


async def test_a_job_that_has_started_no_longer_counts_as_queued(job_store: JobStore) -> None:
    await job_store.jobs.submit(new_job(cost_seconds=9.0))
    with pytest.raises(QueueFull):
        await job_store.jobs.submit(new_job(cost_seconds=9.0))
    await claim_one(job_store, await add_worker(job_store))
    await job_store.jobs.submit(new_job(cost_seconds=9.0))


async def test_concurrent_submissions_are_counted_together(job_store: JobStore) -> None:
    outcomes = await asyncio.gather(
        *(job_store.jobs.submit(new_job(cost_seconds=3.0)) for _ in range(12)), return_exceptions=True
    )
    assert sum(isinstance(outcome, QueueFull) for outcome in outcomes) == 9


async def test_a_job_larger_than_the_limit_is_too_large_instead_of_retryable(job_store: JobStore) -> None:
    with pytest.raises(TooLarge, match="10 device-seconds"):
        await job_store.jobs.submit(new_job(cost_seconds=50.0))


@pytest.mark.parametrize(
    ("overrides", "whose"),
    [
        (PlanOverrides(), "its plan 'small' allows 5"),
        (PlanOverrides(weight=2.0), "its plan 'small' allows 5"),
        (PlanOverrides(max_queued=3), "its own limit, .* is 3"),
    ],
)
async def test_a_full_queue_says_whose_limit_it_is(
    job_store: JobStore, overrides: PlanOverrides, whose: str
) -> None:
    await job_store.keys.create(Role.TENANT, tenant_id="ada", overrides=overrides)
    for _ in range(overrides.max_queued or 5):
        await job_store.jobs.submit(new_job("ada", cost_seconds=1.0))
    with pytest.raises(QueueFull, match=whose):
        await job_store.jobs.submit(new_job("ada", cost_seconds=1.0))
