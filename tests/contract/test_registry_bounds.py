"""The tables of workers and models, which no API key fills."""

from dataclasses import replace

import pytest

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.workers.worker import ModelOffer, Registration
from diffuserve.jobs.config import DAY, StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import REPORT, SPEC, add_worker, new_job, send_heartbeat

KEY, OTHER = "111111111111", "222222222222"


@pytest.fixture
def store_config() -> StoreConfig:
    return StoreConfig(max_workers_of_key=3, max_models_of_key=4)


async def register(store: JobStore, *models: str, key: str = KEY) -> str:
    offers = tuple(ModelOffer(spec=replace(SPEC, name=model)) for model in models or ("tiny",))
    return await store.leases.register(Registration(models=offers, report=REPORT), key)


async def known(store: JobStore) -> list[str]:
    return [worker.id for worker in await store.operations.workers()]


async def test_a_key_has_so_many_live_workers_and_others_go_on(job_store: JobStore) -> None:
    own = [await register(job_store) for _ in range(3)]
    with pytest.raises(ServerUnavailable, match="3 live workers") as refused:
        await register(job_store)
    assert refused.value.retry_after > 0
    await register(job_store, key=OTHER)
    await job_store.leases.deregister(own[0])
    assert await register(job_store)


async def test_the_longest_lost_worker_makes_room(job_store: JobStore, clock: FakeClock) -> None:
    first, second, third = [await register(job_store) for _ in range(3)]
    other = await register(job_store, key=OTHER)
    clock.advance(20.0)
    await send_heartbeat(job_store, first)
    await send_heartbeat(job_store, third)
    clock.advance(20.0)  # the second one is lost
    assert {*await known(job_store)} == {first, second, third, other}
    latest = await register(job_store)
    assert {*await known(job_store)} == {first, third, latest, other}
    with pytest.raises(ServerUnavailable):
        await register(job_store)


async def test_a_key_offers_so_many_models_at_a_time(job_store: JobStore, clock: FakeClock) -> None:
    await register(job_store, "a", "b", "c")
    await register(job_store, "b", "d")
    with pytest.raises(ServerUnavailable, match="5 models"):
        await register(job_store, "e")
    await register(job_store, "e", key=OTHER)
    clock.advance(job_store.config.lease_seconds + 1)
    await register(job_store, "f", "g", "h", "i")


async def test_models_of_nobody_are_few_and_forgotten_after_a_day(
    job_store: JobStore, clock: FakeClock
) -> None:
    for round_number in range(5):
        worker = await register(job_store, *(f"{round_number}-{number}" for number in range(4)))
        clock.advance(1.0)
        await job_store.leases.deregister(worker)
    steady = await register(job_store, "steady", key=OTHER)
    assert {*await job_store.operations.models()} == {"steady", "4-0", "4-1", "4-2", "4-3"}
    for _ in range(2):
        clock.advance(0.6 * DAY)
        await send_heartbeat(job_store, steady)
        await job_store.housekeeping.find_outdated(10)
    assert {*await job_store.operations.models()} == {"steady"}
    await job_store.leases.deregister(steady)
    await job_store.housekeeping.find_outdated(10)
    assert {*await job_store.operations.models()} == {"steady"}, "its day begins when its worker leaves"


async def test_a_model_that_a_job_asked_for_stays_and_starts_a_worker_again(
    job_store: JobStore, clock: FakeClock
) -> None:
    await job_store.leases.deregister(await add_worker(job_store, "tiny"))
    await job_store.jobs.submit(new_job())
    for _ in range(3):
        clock.advance(DAY)
        await job_store.housekeeping.find_outdated(10)
    assert {*await job_store.operations.models()} == {"tiny"}
