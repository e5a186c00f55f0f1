"""Rate limits: a client over its quota is told when to retry."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.client.codec import decode
from diffuserve.domain.jobs.job import Band
from diffuserve.domain.resources.plan import PlanResource
from diffuserve.domain.tenant import Plan, Role
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.quotas.local import LocalQuotas
from diffuserve.quotas.valkey import ValkeyQuotas
from diffuserve.storage.local import LocalArtifactStore
from support.hand_worker import HandWorker
from support.valkey import ValkeyServer

CAT = {"input": {"prompt": "a cat"}}
FLAT_CAT = {"prompt": "a cat"}
READS = (
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/job_1"),
    ("GET", "/v1/jobs/job_1/events"),
    ("GET", "/v1/jobs/job_1/result"),
    ("POST", "/v1/jobs/job_1/cancel"),
    ("DELETE", "/v1/jobs/job_1"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/batches/batch_1"),
    ("GET", "/v1/batches/batch_1/results"),
    ("GET", "/v1/webhooks"),
    ("GET", "/v1/models"),
    ("GET", "/v1/plan"),
    ("GET", "/jobs/job_1"),
)


@pytest.fixture
def store_config(request: pytest.FixtureRequest) -> StoreConfig:
    slow = Plan(name="slow", requests_per_second=getattr(request, "param", 2))
    endless, sparing = Plan(name="endless"), Plan(name="sparing", reads_per_second=0.001)
    return StoreConfig(plans={"slow": slow, "endless": endless, "sparing": sparing}, default_plan="slow")


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def quota_clock() -> Clock:
    return Clock()


@pytest.fixture
def app(store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus, quota_clock: Clock) -> FastAPI:
    return create_app(store, artifacts, bus, ApiConfig(), LocalQuotas(quota_clock))


@pytest.fixture
async def replicas(
    store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus, own_valkey: ValkeyServer
) -> AsyncGenerator[list[httpx.AsyncClient]]:
    """Yield clients of two applications that share their quotas."""
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(2):
            quotas = await stack.enter_async_context(ValkeyQuotas(f"redis://127.0.0.1:{own_valkey.port}"))
            transport = httpx.ASGITransport(create_app(store, artifacts, bus, ApiConfig(), quotas))
            client = httpx.AsyncClient(transport=transport, base_url="http://api.test")
            clients.append(await stack.enter_async_context(client))
        await HandWorker.register(clients[0])
        yield clients


async def test_redelivery_counts_against_the_quota(
    http: httpx.AsyncClient, worker: HandWorker, quota_clock: Clock
) -> None:
    job = (await http.post("/v1/jobs", json=CAT | {"webhook": {"url": "https://hooks.example/"}})).json()
    await http.post(f"/v1/jobs/{job['id']}/cancel")
    [endpoint] = (await http.get("/v1/webhooks")).json()["data"]
    path = f"/v1/webhooks/{endpoint['id']}/deliveries"
    [delivery] = (await http.get(path)).json()["data"]
    quota_clock.now += 10.0
    responses = [await http.post(f"{path}/{delivery['id']}/redeliver") for _ in range(3)]
    assert [response.status_code for response in responses] == [202, 202, 429]
    assert responses[-1].json()["code"] == "rate_limited"


async def test_a_client_over_its_quota_gets_retry_after_and_is_accepted_then(
    http: httpx.AsyncClient, worker: HandWorker, quota_clock: Clock
) -> None:
    responses = [await http.post("/v1/jobs", json=CAT) for _ in range(3)]
    assert [response.status_code for response in responses] == [202, 202, 429]
    assert [response.headers["ratelimit-policy"] for response in responses] == ['"requests";q=2;w=1'] * 3
    assert [response.headers["ratelimit"] for response in responses] == [
        '"requests";r=1;t=1',
        '"requests";r=0;t=1',
        '"requests";r=0;t=1',
    ]
    limited = responses[-1]
    assert limited.json()["code"] == "rate_limited"
    assert limited.json()["retryable"] is True
    assert limited.headers["retry-after"] == "1"
    quota_clock.now += int(limited.headers["retry-after"])
    assert (await http.post("/v1/jobs", json=CAT)).status_code == 202


async def test_a_client_reads_its_plan_and_the_priorities_that_it_allows(http: httpx.AsyncClient) -> None:
    plan = decode(PlanResource, (await http.get("/v1/plan")).content)
    assert (plan.name, plan.requests_per_second, plan.max_running) == ("slow", 2, 8)
    assert plan.priorities == (Band.STANDARD, Band.BATCH), "not above the highest_band"


async def test_routes_that_submit_work_use_the_quota_of_requests_and_reads_do_not(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    flat = await http.post("/generate", json=FLAT_CAT)
    assert flat.status_code == 202
    wrong = await http.post("/v1/jobs", json={"input": {}})
    assert wrong.status_code == 422
    assert wrong.headers["ratelimit"].startswith('"requests";r=0')
    limited = await http.post("/v1/images/generations", json=FLAT_CAT)
    assert limited.status_code == 429
    assert limited.json()["error"]["type"] == "rate_limit_error"
    assert limited.headers["x-should-retry"] == "true"
    assert limited.headers["retry-after"] == "1"
    for _ in range(5):
        read = await http.get(f"/v1/jobs/{flat.json()['job_id']}")
        assert read.status_code == 200
        assert read.headers["ratelimit-policy"].startswith('"reads";')


async def test_every_read_counts_and_those_of_one_tenant_take_nothing_from_another(
    store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus
) -> None:
    """Let each route have a tenant whose only read is taken already."""
    app = create_app(store, artifacts, bus, ApiConfig())
    keys = [await store.keys.create(Role.TENANT, tenant_id=f"t{n}", plan="sparing") for n in range(2)]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.test") as http:
        mine, theirs = ({"authorization": f"Bearer {secret}"} for _, secret in keys)
        first = await http.get("/v1/jobs", headers=mine)
        assert (first.status_code, first.headers["ratelimit"]) == (200, '"reads";r=0;t=1000')
        for method, path in READS:
            refused = await http.request(method, path, headers=mine)
            assert (refused.status_code, path) == (429, path)
            assert int(refused.headers["retry-after"]) > 900
        assert (await http.get("/v1/jobs", headers=theirs)).status_code == 200
        assert (await http.get("/healthz")).status_code == 200


async def test_each_tenant_has_its_own_quota_and_a_plan_may_have_none(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    statuses: dict[str, list[int]] = {}
    for tenant, plan in (("ada", None), ("bob", None), ("eve", "endless")):
        _, secret = await store.keys.create(Role.TENANT, tenant_id=tenant, plan=plan)
        await asyncio.sleep(0 if statuses else 0.6)  # until the server has noticed its first key
        headers = {"authorization": f"Bearer {secret}"}
        responses = [await http.post("/v1/jobs", json=CAT, headers=headers) for _ in range(4)]
        statuses[tenant] = [response.status_code for response in responses]
    assert statuses["ada"] == statuses["bob"] == [202, 202, 429, 429]
    assert statuses["eve"] == [202] * 4
    assert "ratelimit" not in responses[0].headers


@pytest.mark.parametrize("store_config", [0.01], indirect=True)
async def test_control_planes_share_a_tenants_quota_and_count_alone_without_valkey(
    replicas: list[httpx.AsyncClient], own_valkey: ValkeyServer
) -> None:
    first, second = replicas
    responses = [await http.post("/v1/jobs", json=CAT) for http in (first, second, first, second)]
    assert [response.status_code for response in responses] == [202, 429, 429, 429]
    own_valkey.kill()
    responses = [await http.post("/v1/jobs", json=CAT) for http in (first, second, first, second)]
    assert [response.status_code for response in responses] == [202, 202, 429, 429], "each counts by itself"
