"""Responses that are held open: their number is limited, and they share what they read."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import httpx
import pytest
import websockets
from fastapi import FastAPI

from diffuserve.api.services import Services
from diffuserve.domain.tenant import Plan, Role
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from support.hand_worker import HandWorker
from support.waiting import HANG_SECONDS, eventually

CAT = {"input": {"prompt": "a cat"}}


@pytest.fixture
def store_config() -> StoreConfig:
    return StoreConfig(plans={"small": Plan(name="small", max_waits=2)}, default_plan="small")


@pytest.fixture
async def job_id(http: httpx.AsyncClient, worker: HandWorker) -> str:
    return str((await http.post("/v1/jobs", json=CAT)).json()["id"])


@pytest.fixture
async def web(server: str, store: JobStore, job_id: str) -> AsyncGenerator[httpx.AsyncClient]:
    """Yield an operator's client, for a server that has noticed its first key."""
    _, key = await store.keys.create(Role.OPERATOR)
    async with httpx.AsyncClient(base_url=server, timeout=HANG_SECONDS) as nobody:

        async def is_refused() -> bool:
            return (await nobody.get("/v1/jobs")).status_code == 401

        await eventually(is_refused)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=server, headers=headers, timeout=HANG_SECONDS) as web:
        yield web


@pytest.fixture
async def full(web: httpx.AsyncClient, job_id: str) -> AsyncGenerator[AsyncExitStack]:
    """Hold open as many streams as the plan allows; yield what closes them."""
    async with AsyncExitStack() as stack:
        for _ in range(2):
            response = await stack.enter_async_context(web.stream("GET", f"/v1/jobs/{job_id}/events"))
            assert response.status_code == 200
        yield stack


def num_open(app: FastAPI) -> int:
    services: Services = app.state.services
    return services.waits.total


async def test_streams_and_waits_beyond_the_plan_are_refused(
    web: httpx.AsyncClient, full: AsyncExitStack, job_id: str, server: str
) -> None:
    path = f"/v1/jobs/{job_id}"
    refused = [
        await web.get(f"{path}/events"),
        await web.get(path, params={"wait": 30}),
        await web.post("/v1/jobs", json=CAT, headers={"prefer": "wait=30"}),
        await web.post("/v1/images/generations", json={"prompt": "a cat"}),
    ]
    assert [response.status_code for response in refused] == [429] * 4
    assert {response.json()["code"] for response in refused[:3]} == {"too_many_waits"}
    assert refused[3].json()["error"]["code"] == "too_many_waits"
    assert all(int(response.headers["retry-after"]) > 0 for response in refused)
    for socket in (f"/v1/jobs/{job_id}/ws", f"/ws/jobs/{job_id}"):
        with pytest.raises(websockets.InvalidStatus) as raised:
            await websockets.connect(
                server.replace("http", "ws") + socket,
                additional_headers={"authorization": web.headers["authorization"]},
            )
        assert raised.value.response.status_code == 429
    assert len((await web.get("/v1/jobs")).json()["data"]) == 1, "what is refused is not queued"
    assert (await web.get(path)).status_code == 200, "what does not wait is served"


async def test_a_stream_that_ends_makes_room_for_another(
    web: httpx.AsyncClient, full: AsyncExitStack, app: FastAPI, job_id: str, worker: HandWorker
) -> None:
    assert num_open(app) == 2
    await full.aclose()
    await eventually(lambda: num_open(app) == 0)
    waiting = asyncio.create_task(web.get(f"/v1/jobs/{job_id}", params={"wait": 30}))
    await eventually(lambda: num_open(app) == 1)
    await web.post(f"/v1/jobs/{job_id}/cancel")
    assert (await waiting).json()["status"] == "canceled"
    assert num_open(app) == 0
    assert (await web.head(f"/v1/jobs/{job_id}/events")).status_code in (200, 405)
    assert num_open(app) == 0


async def test_the_waits_of_one_tenant_take_nothing_from_another(
    web: httpx.AsyncClient, full: AsyncExitStack, store: JobStore, worker: HandWorker
) -> None:
    _, key = await store.keys.create(Role.TENANT, tenant_id="other")
    theirs = {"authorization": f"Bearer {key}"}
    response = await web.post("/v1/jobs", json=CAT, headers={**theirs, "prefer": "wait=1"})
    assert response.status_code == 202
    assert response.headers["preference-applied"] == "wait=1"


async def test_watching_the_server_counts_as_a_wait(web: httpx.AsyncClient, full: AsyncExitStack) -> None:
    refused = await web.get("/v1/operations/events")
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_waits")
    await full.aclose()
    async with web.stream("GET", "/v1/operations/events") as response:
        assert response.status_code == 200
