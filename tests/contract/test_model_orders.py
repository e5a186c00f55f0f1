"""Orders of models: given to workers that can carry them out, one at a time, and told until replaced."""

from dataclasses import replace

import pytest

from diffuserve.domain.errors import Conflict, InvalidParams, ModelConflict, ServerUnavailable, WorkerNotFound
from diffuserve.domain.workers.model_orders import (
    ModelOrder,
    ModelToHave,
    OrderProgress,
    OrdersReport,
    OrderState,
)
from diffuserve.domain.workers.worker import Heartbeat, ModelOffer, Registration
from diffuserve.jobs.store import JobStore
from diffuserve.jobs.workers import kept_orders
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import REPORT, SPEC

FREE = ModelToHave(name="free", license="MIT", makes="images", num_bytes=10)
BOUND = ModelToHave(name="bound", license="RAIL", makes="images", needs_consent=True)
LARGE = ModelToHave(name="large", license="MIT", makes="images", num_bytes=2_000_000_000)
ORDERS = OrdersReport(models=(FREE, BOUND, LARGE), room_bytes=1_000_000_000)
FIRST, SECOND = ModelOrder(id="order_1", model="free"), ModelOrder(id="order_2", model="bound")


async def register(store: JobStore, orders: OrdersReport | None = ORDERS, name: str = "w") -> str:
    report = replace(REPORT, orders=orders)
    return await store.leases.register(
        Registration(models=(ModelOffer(spec=SPEC),), report=report, name=name)
    )


async def beat(
    store: JobStore, worker: str, state: OrderState | None = None, order: ModelOrder = FIRST
) -> ModelOrder | None:
    """Report an order in this state, and return the order that the worker is told."""
    progress = None if state is None else OrderProgress(id=order.id, model=order.model, state=state)
    report = replace(REPORT, orders=replace(ORDERS, progress=progress))
    return (await store.leases.heartbeat(worker, Heartbeat(report=report))).order


async def test_an_order_is_told_again_and_again_until_the_next_one(job_store: JobStore) -> None:
    worker = await register(job_store)
    assert await beat(job_store, worker) is None
    await job_store.leases.order_model(worker, FIRST)
    assert [await beat(job_store, worker) for _ in range(2)] == [FIRST, FIRST]
    with pytest.raises(Conflict, match="worker w is at free; wait for it, or cancel"):
        await job_store.leases.order_model(worker, SECOND, accepts_license=True)
    await beat(job_store, worker, OrderState.LOADING)
    with pytest.raises(Conflict, match="is at free"):
        await job_store.leases.order_model(worker, SECOND, accepts_license=True)
    await beat(job_store, worker, OrderState.FAILED)
    await job_store.leases.order_model(worker, SECOND, accepts_license=True)
    assert await beat(job_store, worker, OrderState.FAILED) == SECOND


async def test_an_order_is_taken_back(job_store: JobStore) -> None:
    worker = await register(job_store)
    await job_store.leases.order_model(worker, FIRST)
    await job_store.leases.cancel_order(worker)
    assert await beat(job_store, worker) is None
    await job_store.leases.order_model(worker, SECOND, accepts_license=True)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("fre", "did you mean 'free'"),
        ("owner/evil", "is none that worker w can get"),
        ("large", "takes about 2.0 GB for its weights, and the models of this worker may have 1.0 GB"),
        ("bound", "bound is under the RAIL, which restricts uses"),
    ],
)
async def test_what_a_worker_cannot_get_or_may_not_is_refused(
    job_store: JobStore, model: str, message: str
) -> None:
    worker = await register(job_store)
    with pytest.raises(InvalidParams, match=message):
        await job_store.leases.order_model(worker, replace(FIRST, model=model))
    assert await beat(job_store, worker) is None


async def test_only_workers_that_take_orders_and_are_there_are_given_any(
    job_store: JobStore, clock: FakeClock
) -> None:
    with pytest.raises(WorkerNotFound):
        await job_store.leases.order_model("worker_x", FIRST)
    with pytest.raises(WorkerNotFound):
        await job_store.leases.cancel_order("worker_x")
    with pytest.raises(Conflict, match="takes no orders of models; start it with --model-orders"):
        await job_store.leases.order_model(await register(job_store, orders=None), FIRST)
    worker = await register(job_store)
    clock.advance(10 * job_store.config.lease_seconds)
    with pytest.raises(Conflict, match="worker w is lost"):
        await job_store.leases.order_model(worker, FIRST)


async def test_a_worker_offers_more_models_which_others_may_not_contradict(job_store: JobStore) -> None:
    worker = await register(job_store)
    more = replace(SPEC, name="free")
    for _ in range(2):
        await job_store.leases.offer_more(worker, [ModelOffer(spec=more)])
    [known] = await job_store.operations.workers()
    assert known.models == (SPEC.name, "free")
    assert (await job_store.operations.models())["free"].spec == more
    other = await register(job_store)
    with pytest.raises(ModelConflict):
        await job_store.leases.offer_more(other, [ModelOffer(spec=replace(more, width=2 * more.width))])
    with pytest.raises(WorkerNotFound):
        await job_store.leases.offer_more("worker_x", [ModelOffer(spec=more)])
    many = [ModelOffer(spec=replace(SPEC, name=f"m{n}")) for n in range(job_store.config.max_models_of_key)]
    with pytest.raises(ServerUnavailable, match="models, with these"):
        await job_store.leases.offer_more(worker, many)


async def carry_out(store: JobStore, worker: str, order: ModelOrder) -> None:
    await store.leases.order_model(worker, order, accepts_license=True)
    await beat(store, worker, OrderState.LOADED, order)


async def test_a_worker_that_starts_anew_is_told_what_it_had_loaded_one_after_the_other(
    job_store: JobStore,
) -> None:
    worker = await register(job_store)
    for order in (FIRST, SECOND):
        await carry_out(job_store, worker, order)
    assert await job_store.leases.kept_orders(worker) == (FIRST, SECOND)
    await job_store.leases.deregister(worker)
    again = await register(job_store)
    assert await beat(job_store, again) == FIRST
    assert await beat(job_store, again, OrderState.LOADING) == FIRST
    assert await beat(job_store, again, OrderState.FAILED) == SECOND, "one that fails keeps no other back"
    assert await beat(job_store, again, OrderState.LOADED, SECOND) == SECOND
    assert set(await job_store.leases.kept_orders(again)) == {FIRST, SECOND}


async def test_only_what_was_loaded_is_kept_and_only_for_workers_of_the_name(job_store: JobStore) -> None:
    worker = await register(job_store)
    await job_store.leases.order_model(worker, FIRST)
    for state in (OrderState.FETCHING, OrderState.LOADING, OrderState.FAILED):
        await beat(job_store, worker, state)
    assert await beat(job_store, await register(job_store)) is None
    await carry_out(job_store, worker, SECOND)
    assert await beat(job_store, await register(job_store, name="another")) is None
    assert await beat(job_store, await register(job_store, orders=None)) == SECOND


async def test_an_order_is_kept_until_it_is_taken_back(job_store: JobStore) -> None:
    worker = await register(job_store)
    for order in (FIRST, SECOND):
        await carry_out(job_store, worker, order)
    again = await register(job_store)
    await job_store.leases.cancel_order(again, "bound")
    assert await beat(job_store, again) == FIRST
    assert await beat(job_store, again, OrderState.LOADED) == FIRST
    await job_store.leases.cancel_order(again)
    assert await job_store.leases.kept_orders(again) == ()
    assert await beat(job_store, await register(job_store)) is None
    with pytest.raises(WorkerNotFound):
        await job_store.leases.kept_orders("worker_x")


async def test_orders_are_kept_for_so_many_names(
    job_store: JobStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_orders, "_MAX_NAMES", 2)
    for name in ("a", "b", "c"):
        await carry_out(job_store, await register(job_store, name=name), FIRST)
        clock.advance(1.0)
    told = [await beat(job_store, await register(job_store, name=name)) for name in ("a", "b", "c")]
    assert told == [None, FIRST, FIRST]
