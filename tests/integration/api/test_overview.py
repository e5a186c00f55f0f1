"""Operators read and follow the state of the server over HTTP."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.services import Services
from diffuserve.domain.deltas import apply
from diffuserve.domain.tenant import Role
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from support.hand_worker import HandWorker
from support.waiting import HANG_SECONDS, eventually

CAT = {"input": {"prompt": "a cat"}}
PATHS = ("/v1/operations", "/v1/operations/history", "/v1/operations/events")


@pytest.fixture
def store_config() -> StoreConfig:
    return StoreConfig(lease_seconds=3.0, heartbeat_seconds=1.0)


@pytest.fixture
def services(app: FastAPI) -> Services:
    services: Services = app.state.services
    services.overview_feed._period_seconds = 0.05
    return services


@pytest.fixture
async def web(services: Services, server: str) -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server, timeout=HANG_SECONDS) as web:
        yield web


class Watcher:
    """A client that follows the server, and applies every delta to the snapshot."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.state: dict[str, Any] = {}
        self.num_deltas = 0

    async def read(self) -> dict[str, Any]:
        """Return the state after the next event."""
        kind, data = "", ""
        async for line in self._lines:
            name, _, value = line.partition(": ")
            kind, data = (value, data) if name == "event" else (kind, value if name == "data" else data)
            if not line and data:
                break
        content = json.loads(data)
        self.state = content if kind == "snapshot" else apply(content, self.state)
        self.num_deltas += kind == "delta"
        return self.state


@asynccontextmanager
async def watching(web: httpx.AsyncClient) -> AsyncIterator[Watcher]:
    async with web.stream("GET", "/v1/operations/events") as response:
        assert response.status_code == 200
        yield Watcher(response.aiter_lines())


async def test_operators_alone_see_the_server(http: httpx.AsyncClient, store: JobStore) -> None:
    for role in (Role.TENANT, Role.MONITOR, Role.WORKER):
        _, secret = await store.keys.create(role, tenant_id="ada" if role is Role.TENANT else None)
        for path in PATHS:
            response = await http.get(path, headers={"authorization": f"Bearer {secret}"})
            assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    _, operator = await store.keys.create(Role.OPERATOR)
    for path in PATHS[:2]:
        response = await http.get(path, headers={"authorization": f"Bearer {operator}"})
        assert response.status_code == 200
        assert response.headers["cache-control"] == "no-store"


async def test_deltas_lead_to_the_state_that_a_request_returns(
    web: httpx.AsyncClient, http: httpx.AsyncClient, worker: HandWorker
) -> None:
    async with watching(web) as watcher:
        first = await watcher.read()
        assert [shown["id"] for shown in first["workers"]] == [worker.id]
        job_id = (await http.post("/v1/jobs", json=CAT)).json()["id"]
        while watcher.state["queue"]["num_ready"] == 0:
            await watcher.read()
        assert watcher.state["lanes"][0]["tenant_id"] == "default"
        (lease,) = await worker.claim()
        await worker.report(lease, 2, 4)
        while not any(job["step"] == 2 for job in watcher.state["workers"][0]["jobs"]):
            await watcher.read()
        assert watcher.state["workers"][0]["jobs"][0]["id"] == job_id
        assert watcher.num_deltas >= 2
        await asyncio.sleep(1.1)  # what GET returns may be a second old
        whole = (await web.get("/v1/operations")).json()
        while watcher.state["at"] < whole["at"]:
            await watcher.read()
    changing = {"at", "revision"}
    assert {name: value for name, value in watcher.state.items() if name not in changing} == {
        name: value for name, value in whole.items() if name not in changing
    }


async def test_watchers_share_one_reading_of_the_store(
    web: httpx.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_reads = 0
    read = services.store.overview.read

    async def counted() -> Any:
        nonlocal num_reads
        num_reads += 1
        return await read()

    monkeypatch.setattr(services.store.overview, "read", counted)
    async with watching(web) as ada, watching(web) as bob, watching(web) as eve:
        for _ in range(4):
            states = [await watcher.read() for watcher in (ada, bob, eve)]
        assert num_reads <= max(state["revision"] for state in states) + 1
        assert ada.num_deltas >= 3
    await eventually(lambda: services.overview_feed._task is None)
    seen = num_reads
    await asyncio.sleep(0.2)
    assert num_reads == seen  # nobody watches, so nobody reads


async def test_a_dead_worker_is_lost_within_its_lease_and_its_jobs_move(
    web: httpx.AsyncClient, http: httpx.AsyncClient, services: Services, store: JobStore
) -> None:
    """Watch eight workers, of which one dies, while others go on; the store's own times judge."""
    workers = [await HandWorker.register(http) for _ in range(8)]
    for _ in range(16):
        await http.post("/v1/jobs", json=CAT)
    leases = {worker.id: await worker.claim(2) for worker in workers}
    dead, alive = workers[0], workers[1:]
    lost_ids = {lease.job_id for lease in leases[dead.id]}
    assert lost_ids

    async def work_on() -> None:
        while True:
            await store.housekeeping.reap("here")
            for worker in alive:
                await worker.heartbeat(*leases[worker.id])
                leases[worker.id] += await worker.claim(1)
            await asyncio.sleep(0.1)

    working = asyncio.create_task(work_on())
    async with watching(web) as watcher:
        state, last_alive_at = await watcher.read(), ""
        while shown(state, dead)["state"] != "lost":
            last_alive_at = state["at"]
            state = await watcher.read()
        beat_at = shown(state, dead)["heartbeat_at"]
        assert age(state["at"], beat_at) > store.config.lease_seconds >= age(last_alive_at, beat_at)
        while not lost_ids <= {job["id"] for worker in alive for job in shown(state, worker)["jobs"]}:
            state = await watcher.read()
        assert shown(state, dead)["jobs"] == []
        assert state["num_workers"]["lost"] == 1
        lost = {outcome["id"]: outcome["num_attempts"] for outcome in state["device_seconds"]}["lost"]
        assert lost == len(lost_ids)
    working.cancel()


def shown(state: dict[str, Any], worker: HandWorker) -> dict[str, Any]:
    return next(resource for resource in state["workers"] if resource["id"] == worker.id)


def age(later: str, earlier: str) -> float:
    from diffuserve.domain.text.timestamps import from_rfc3339

    return (from_rfc3339(later) - from_rfc3339(earlier)).total_seconds()


async def test_the_last_hour_has_one_point_for_each_ten_seconds(
    http: httpx.AsyncClient, app: FastAPI, worker: HandWorker
) -> None:
    services: Services = app.state.services
    assert (await http.get("/v1/operations/history")).json() == {"data": []}
    for _ in range(3):
        await services.history_recorder.record()
    points = (await http.get("/v1/operations/history")).json()["data"]
    assert len(points) in (1, 2)  # two if ten seconds began meanwhile
    assert points[0]["num_workers"] == 1
    assert points[0]["per_minute"].keys() == {"succeeded", "failed", "canceled", "expired"}
