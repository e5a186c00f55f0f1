"""Requests per second: who asks too often is told when to come again."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
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


@pytest.fixture
def store_config(request: pytest.FixtureRequest) -> StoreConfig:
    slow = Plan(name="slow", requests_per_second=getattr(request, "param", 2))
    return StoreConfig(plans={"slow": slow, "endless": Plan(name="endless")}, default_plan="slow")


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
    """Two apps that share their quotas."""
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(2):
            quotas = await stack.enter_async_context(ValkeyQuotas(f"redis://127.0.0.1:{own_valkey.port}"))
            transport = httpx.ASGITransport(create_app(store, artifacts, bus, ApiConfig(), quotas))
            client = httpx.AsyncClient(transport=transport, base_url="http://api.test")
            clients.append(await stack.enter_async_context(client))
        await HandWorker.register(clients[0])
        yield clients


async def test_who_asks_too_often_is_told_when_to_come_again_and_is_then_let_in(
    http: httpx.AsyncClient, worker: HandWorker, quota_clock: Clock
) -> None:
    answers = [await http.post("/v1/jobs", json=CAT) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 429]
    assert [answer.headers["ratelimit-policy"] for answer in answers] == ['"requests";q=2;w=1'] * 3
    assert [answer.headers["ratelimit"] for answer in answers] == [
        '"requests";r=1;t=1',
        '"requests";r=0;t=1',
        '"requests";r=0;t=1',
    ]
    refused = answers[-1]
    assert refused.json()["code"] == "rate_limited"
    assert refused.json()["retryable"] is True
    assert refused.headers["retry-after"] == "1"
    quota_clock.now += int(refused.headers["retry-after"])
    assert (await http.post("/v1/jobs", json=CAT)).status_code == 202


async def test_all_routes_that_make_work_count_and_those_that_look_do_not(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    flat = await http.post("/generate", json=FLAT_CAT)
    assert flat.status_code == 202
    wrong = await http.post("/v1/jobs", json={"input": {}})
    assert wrong.status_code == 422
    assert wrong.headers["ratelimit"].startswith('"requests";r=0')
    refused = await http.post("/v1/images/generations", json=FLAT_CAT)
    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert refused.headers["x-should-retry"] == "true"
    assert refused.headers["retry-after"] == "1"
    for _ in range(5):
        looked = await http.get(f"/v1/jobs/{flat.json()['job_id']}")
        assert looked.status_code == 200
        assert "ratelimit" not in looked.headers


async def test_a_tenant_has_its_own_and_a_plan_may_have_none(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    statuses: dict[str, list[int]] = {}
    for tenant, plan in (("ada", None), ("bob", None), ("eve", "endless")):
        _, secret = await store.keys.create(Role.TENANT, tenant_id=tenant, plan=plan)
        await asyncio.sleep(0 if statuses else 0.6)  # until the first key has shut the server
        headers = {"authorization": f"Bearer {secret}"}
        answers = [await http.post("/v1/jobs", json=CAT, headers=headers) for _ in range(4)]
        statuses[tenant] = [answer.status_code for answer in answers]
    assert statuses["ada"] == statuses["bob"] == [202, 202, 429, 429]
    assert statuses["eve"] == [202] * 4
    assert "ratelimit" not in answers[0].headers


@pytest.mark.parametrize("store_config", [0.01], indirect=True)
async def test_control_planes_share_a_tenants_quota_and_without_valkey_nothing_fails(
    replicas: list[httpx.AsyncClient], own_valkey: ValkeyServer
) -> None:
    one, two = replicas
    answers = [await http.post("/v1/jobs", json=CAT) for http in (one, two, one, two)]
    assert [answer.status_code for answer in answers] == [202, 429, 429, 429]
    own_valkey.kill()
    answers = [await http.post("/v1/jobs", json=CAT) for http in (one, two, one, two)]
    assert [answer.status_code for answer in answers] == [202, 202, 429, 429], "each counts alone"
