"""Autoscalers ask how many workers a pool should have."""

from collections.abc import AsyncGenerator, Callable

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.domain.tenant import Role
from diffuserve.jobs.policy.scaling import Floor, ScaleConfig
from diffuserve.jobs.store import JobStore
from support.hand_worker import HandWorker
from support.store_driver import new_job

PATH = "/internal/v1/scale/hand"
FLOORS = {"flux/schnell": (Floor(workers=2),), "hand": (Floor(workers=4),)}


@pytest.fixture
async def floored(make_app: Callable[[ApiConfig], FastAPI]) -> AsyncGenerator[httpx.AsyncClient]:
    app = make_app(ApiConfig(scale=ScaleConfig(scale_floors=FLOORS)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.test") as http:
        yield http


async def test_the_number_follows_the_work(http: httpx.AsyncClient, store: JobStore) -> None:
    worker = await HandWorker.register(http)
    assert (await http.get(PATH)).json()["workers"] == 0
    for _ in range(2):
        await store.jobs.submit(new_job(model="hand", cost_seconds=250.0))
    size = (await http.get(PATH)).json()
    assert (size["pool"], size["for_work"], size["num_live"]) == ("hand", 5, 1)
    assert size["workers"] == max(size["for_work"], size["for_rate"])
    await worker.claim()
    assert (await http.get(PATH)).json()["for_work"] == 5  # what runs is not done


async def test_a_floor_starts_the_first_worker_of_a_model_that_nobody_offers_yet(
    floored: httpx.AsyncClient,
) -> None:
    size = (await floored.get("/internal/v1/scale/flux/schnell")).json()
    assert (size["pool"], size["workers"], size["floor"], size["num_live"]) == ("flux/schnell", 2, 2, 0)


async def test_a_misspelt_pool_is_told_with_those_that_exist(http: httpx.AsyncClient) -> None:
    await HandWorker.register(http)
    response = await http.get("/internal/v1/scale/hund")
    assert (response.status_code, response.json()["code"]) == (404, "model_not_found")
    assert "'hund'" in response.json()["detail"]
    assert "hand" in response.json()["detail"]


async def test_spot_workers_are_those_that_workers_on_demand_leave_to_be_started(
    floored: httpx.AsyncClient,
) -> None:
    await HandWorker.register(floored)
    await HandWorker.register(floored, is_spot=True)
    leaving = await HandWorker.register(floored)
    await floored.post(f"/v1/workers/{leaving.id}/drain")
    every, spot = [(await floored.get(PATH, params={"kind": kind})).json() for kind in ("all", "spot")]
    assert (every["workers"], spot["workers"]) == (4, 3)
    assert (spot["num_live"], spot["num_on_demand"]) == (2, 1)


async def test_only_monitors_and_operators_may_ask(http: httpx.AsyncClient, store: JobStore) -> None:
    await HandWorker.register(http)
    roles = (Role.MONITOR, Role.OPERATOR, Role.WORKER, Role.TENANT)
    secrets = [(await store.keys.create(role, tenant_id=_tenant(role)))[1] for role in roles]
    headers = [{"authorization": f"Bearer {secret}"} for secret in secrets]
    statuses = [(await http.get(PATH, headers=each)).status_code for each in (*headers, {})]
    assert statuses == [200, 200, 403, 403, 401]


def _tenant(role: Role) -> str | None:
    return "ada" if role is Role.TENANT else None


async def test_idle_workers_leave_down_to_the_floor(floored: httpx.AsyncClient) -> None:
    workers = [await HandWorker.register(floored) for _ in range(6)]
    asked = [await floored.post(f"/v1/workers/{worker.id}/leave") for worker in workers]
    assert [response.json()["leaves"] for response in asked] == [True, True, False, False, False, False]
    assert (await floored.get(PATH)).json()["num_live"] == 4
