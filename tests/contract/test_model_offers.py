"""The models that workers offer, and the fits that price their jobs."""

from dataclasses import asdict, replace

import pytest

from diffuserve.domain.codec import from_values
from diffuserve.domain.errors import InvalidParams, LeaseLost, ModelConflict
from diffuserve.domain.jobs.job import JobResult
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.workers.worker import Completion, Heartbeat, ModelOffer, Registration, Release
from diffuserve.jobs.policy.pricing import NEUTRAL_FIT, predict
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import REPORT, SPEC, claim_one, new_job

DEFAULT = CostFit((1.0, 0.0), (1.0, 0.0, 0.0, 0.0), (1.0, 0.0))
MEASURED = CostFit((2.0, 0.0), (2.0, 0.0, 0.0, 0.0), (2.0, 0.0))


async def offer(store: JobStore, fit: CostFit | None, spec: ModelSpec = SPEC) -> str:
    offered = ModelOffer(spec=spec, fit=fit)
    return await store.leases.register(Registration(models=(offered,), report=REPORT))


async def fit_of(store: JobStore) -> CostFit:
    return (await store.operations.models())[SPEC.name].fit


async def test_a_model_without_a_fit_is_priced_by_the_neutral_one(job_store: JobStore) -> None:
    await offer(job_store, None)
    assert await fit_of(job_store) == NEUTRAL_FIT


async def test_a_model_is_priced_by_the_default_that_its_worker_offers(job_store: JobStore) -> None:
    await offer(job_store, None)
    await offer(job_store, DEFAULT)
    assert await fit_of(job_store) == DEFAULT
    await offer(job_store, None)
    assert await fit_of(job_store) == DEFAULT


async def test_an_offered_default_never_replaces_a_measured_fit(job_store: JobStore) -> None:
    worker = await offer(job_store, DEFAULT)
    await job_store.leases.heartbeat(worker, Heartbeat(report=REPORT, fits={SPEC.name: MEASURED}))
    assert await fit_of(job_store) == MEASURED
    await offer(job_store, DEFAULT)
    assert await fit_of(job_store) == MEASURED


async def test_what_a_load_took_is_kept_by_reports_that_did_not_measure_it(job_store: JobStore) -> None:
    worker = await offer(job_store, DEFAULT)
    assert (await fit_of(job_store)).load_seconds == 0.0
    for load_seconds in (7.5, 0.0):
        await report(job_store, worker, replace(MEASURED, load_seconds=load_seconds))
        assert await fit_of(job_store) == replace(MEASURED, load_seconds=7.5)
    await report(job_store, worker, replace(MEASURED, load_seconds=2.0))
    assert (await fit_of(job_store)).load_seconds == 2.0


async def report(store: JobStore, worker: str, fit: CostFit, model: str = SPEC.name) -> None:
    await store.leases.heartbeat(worker, Heartbeat(report=REPORT, fits={model: fit}))


def price(fit: CostFit) -> float:
    return predict(SPEC, fit, SPEC.resolve(GenerationParams(prompt="a star"), 0)).cost_seconds


@pytest.mark.parametrize(
    ("factor", "most"), [(1e9, 100.0), (1e-9, 0.01), (0.0, 0.01), (50.0, 50.0), (0.1, 0.1)]
)
async def test_a_measured_fit_is_bounded_by_the_default(
    job_store: JobStore, factor: float, most: float
) -> None:
    worker = await offer(job_store, DEFAULT)
    for _ in range(2):  # a second report gets no further than the first
        await report(job_store, worker, DEFAULT.scaled(factor))
        assert price(await fit_of(job_store)) == pytest.approx(most * price(DEFAULT))


async def test_a_fit_of_a_busy_time_is_replaced_by_the_next_report(job_store: JobStore) -> None:
    worker = await offer(job_store, DEFAULT)
    await report(job_store, worker, MEASURED.scaled(28.0))
    await report(job_store, worker, MEASURED)
    assert await fit_of(job_store) == MEASURED


async def test_a_default_is_bounded_even_where_there_is_none_yet(job_store: JobStore) -> None:
    await offer(job_store, None)
    await offer(job_store, NEUTRAL_FIT.scaled(1e9))
    assert price(await fit_of(job_store)) == pytest.approx(10_000 * price(NEUTRAL_FIT))


async def test_a_fit_for_a_model_that_the_worker_did_not_register_is_refused(job_store: JobStore) -> None:
    await offer(job_store, DEFAULT)
    other = await offer(job_store, DEFAULT, replace(SPEC, name="other"))
    with pytest.raises(InvalidParams, match="registered no such model"):
        await report(job_store, other, MEASURED)
    assert await fit_of(job_store) == DEFAULT


async def test_another_spec_of_a_model_waits_until_no_live_worker_offers_the_old_one(
    job_store: JobStore, clock: FakeClock
) -> None:
    old = await offer(job_store, DEFAULT)
    await report(job_store, old, MEASURED)
    larger = replace(SPEC, width=128)
    with pytest.raises(ModelConflict, match=rf"'{SPEC.name}'.*another width \({old} is one\); drain them"):
        await offer(job_store, DEFAULT, larger)
    assert (await job_store.operations.models())[SPEC.name].spec == SPEC
    await job_store.leases.drain(old)
    await offer(job_store, DEFAULT, larger)
    stored = (await job_store.operations.models())[SPEC.name]
    assert (stored.spec, stored.fit) == (larger, DEFAULT)  # what was measured was another model
    clock.advance(1_000.0)
    await offer(job_store, DEFAULT, SPEC)  # that worker is lost


async def test_the_same_spec_may_come_from_many_workers_and_versions(job_store: JobStore) -> None:
    await offer(job_store, DEFAULT)
    await offer(job_store, DEFAULT)
    later = from_values(ModelOffer, {"spec": asdict(SPEC) | {"from_a_later_version": 1}})
    await job_store.leases.register(Registration(models=(later,), report=REPORT))


async def test_a_version_that_describes_a_model_further_works_beside_others(job_store: JobStore) -> None:
    await offer(job_store, DEFAULT)
    described = replace(SPEC, learned_min_size=96, learned_max_size=256)
    await offer(job_store, DEFAULT, described)
    assert (await job_store.operations.models())[SPEC.name].spec == described


async def test_a_worker_reports_for_leases_of_its_own_key_alone(job_store: JobStore) -> None:
    worker = await job_store.leases.register(
        Registration(models=(ModelOffer(spec=SPEC),), report=REPORT), "key_a"
    )
    await job_store.jobs.submit(new_job())
    lease = await claim_one(job_store, worker)
    done = Completion(lease_token=lease.lease_token, result=JobResult(), actual_seconds=1.0)
    with pytest.raises(LeaseLost):
        await job_store.leases.check(lease.job_id, lease.lease_token, "key_b")
    with pytest.raises(LeaseLost):
        await job_store.leases.complete(lease.job_id, done, "key_b")
    with pytest.raises(LeaseLost):
        await job_store.leases.release(lease.job_id, Release(lease_token=lease.lease_token), "key_b")
    for _ in range(2):
        assert await job_store.leases.complete(lease.job_id, done, "key_a") == "succeeded"
    with pytest.raises(LeaseLost):
        await job_store.leases.complete(lease.job_id, done, "key_b")


async def test_jobs_for_a_model_are_accepted_before_its_worker_has_registered(job_store: JobStore) -> None:
    offered = ModelOffer(spec=SPEC, fit=DEFAULT)
    await job_store.operations.expect(offered)
    assert await fit_of(job_store) == DEFAULT
    job = await job_store.jobs.submit(new_job())
    estimate = await job_store.jobs.estimate(job)
    assert estimate is not None
    assert (estimate.eta_s_low, estimate.reason) == (None, f"{SPEC.name} is being loaded")
    await offer(job_store, DEFAULT)


async def test_an_expected_model_changes_none_that_live_workers_offer(job_store: JobStore) -> None:
    await offer(job_store, DEFAULT)
    other = replace(SPEC, num_inference_steps=SPEC.num_inference_steps + 1)
    with pytest.raises(ModelConflict, match="num_inference_steps"):
        await job_store.operations.expect(ModelOffer(spec=other))
    assert (await job_store.operations.models())[SPEC.name].spec == SPEC
