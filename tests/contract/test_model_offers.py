"""The models that workers offer, and the fits that price their jobs."""

from diffuserve.domain.cost import CostFit
from diffuserve.domain.worker import Heartbeat, ModelOffer, Registration
from diffuserve.jobs.pricing import NEUTRAL_FIT
from diffuserve.jobs.store import JobStore
from support.store_driver import REPORT, SPEC

DEFAULT = CostFit((1.0, 0.0), (1.0, 0.0, 0.0, 0.0), (1.0, 0.0))
MEASURED = CostFit((2.0, 0.0), (2.0, 0.0, 0.0, 0.0), (2.0, 0.0))


async def offer(store: JobStore, fit: CostFit | None) -> str:
    offered = ModelOffer(spec=SPEC.to_dict(), fit=None if fit is None else fit.to_dict())
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
    await job_store.leases.heartbeat(worker, Heartbeat(report=REPORT, fits={SPEC.name: MEASURED.to_dict()}))
    assert await fit_of(job_store) == MEASURED
    await offer(job_store, DEFAULT)
    assert await fit_of(job_store) == MEASURED
