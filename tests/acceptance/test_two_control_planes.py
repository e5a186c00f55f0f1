"""Two `diffuserve api` on one PostgreSQL and one Valkey, as a load balancer would spread calls over them."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import aconnect_sse

from support.hand_worker import PNG, HandWorker
from support.postgres import PostgresServer
from support.valkey import ValkeyServer
from support.waiting import HANG_SECONDS, eventually

_NUMBERS = itertools.count()
STAR = {"input": {"prompt": "a star"}, "num_previews": 1}


class Replica:
    """A control plane process."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        with (folder / f"api-{next(_NUMBERS)}.log").open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "diffuserve", "api"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **settings},
            )

    async def http(self) -> httpx.AsyncClient:
        """Once it answers."""
        assert self._process.stdout is not None
        address = (await asyncio.to_thread(self._process.stdout.readline)).strip()
        assert address.startswith("http://127.0.0.1:")
        return httpx.AsyncClient(base_url=address, timeout=HANG_SECONDS, trust_env=False)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass
class Cluster:
    """Clients speak to `one`, the worker to `two`."""

    replicas: list[Replica]
    one: httpx.AsyncClient
    two: httpx.AsyncClient
    valkey: ValkeyServer


@pytest.fixture
async def cluster(
    postgres: PostgresServer, own_valkey: ValkeyServer, tmp_path: Path
) -> AsyncGenerator[Cluster]:
    settings = {
        "DIFFUSERVE_DATABASE_URL": postgres.create_database(f"replicas_{next(_NUMBERS)}"),
        "DIFFUSERVE_VALKEY_URL": own_valkey.url,
        "DIFFUSERVE_DATA_DIR": str(tmp_path / "data"),
        "DIFFUSERVE_PORT": "0",
    }
    async with AsyncExitStack() as stack:
        replicas = [Replica(tmp_path, settings) for _ in range(2)]
        for replica in replicas:
            stack.callback(replica.kill)
        one, two = [await stack.enter_async_context(await replica.http()) for replica in replicas]
        yield Cluster(replicas, one, two, own_valkey)


@dataclass
class WebhookNotice:
    """The events of a stream, so far."""

    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def stored(self) -> list[tuple[int, str]]:
        return [(event["seq"], event["type"]) for event in self.events if event["seq"] is not None]

    async def until(self, kind: str, **values: Any) -> None:
        """Wait until the newest event is of this type, and has these values among its data."""

        def is_newest() -> bool:
            newest: dict[str, Any] = self.events[-1] if self.events else {"type": "", "data": {}}
            return bool(newest["type"] == kind and newest["data"].items() >= values.items())

        await eventually(is_newest)


@asynccontextmanager
async def following(http: httpx.AsyncClient, job_id: str, after: int = 0) -> AsyncGenerator[WebhookNotice]:
    told = WebhookNotice()
    task = asyncio.create_task(_read(http, job_id, after, told))
    try:
        yield told
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, httpx.TransportError):
            await task


async def _read(http: httpx.AsyncClient, job_id: str, after: int, told: WebhookNotice) -> None:
    headers = {"last-event-id": str(after)}
    async with aconnect_sse(http, "GET", f"/v1/jobs/{job_id}/events", headers=headers) as source:
        async for event in source.aiter_sse():
            told.events.append(json.loads(event.data))


async def submit(http: httpx.AsyncClient) -> str:
    answer = await http.post("/v1/jobs", json=STAR)
    return str(answer.raise_for_status().json()["id"])


async def run_a_job(cluster: Cluster, worker: HandWorker, has_bus: bool) -> None:
    """Follow a job from its submission to its result.

    Progress is not stored, so it comes by the bus or not at all; the rest is also found by looking.
    """
    claiming = asyncio.create_task(worker.claim(wait=25))
    await asyncio.sleep(0.1)  # until it waits
    job_id = await submit(cluster.one)
    async with following(cluster.one, job_id) as told:
        [lease] = await claiming
        await told.until("running")
        for step in (1, 2):
            await worker.report(lease, step, 4)
            if has_bus:
                await told.until("progress", step=step)
                shown = (await cluster.one.get(f"/v1/jobs/{job_id}")).json()
                assert shown["progress"]["step"] == step
        await worker.complete(lease)
        await told.until("succeeded")
        assert told.stored == [(1, "queued"), (2, "running"), (3, "succeeded")]


async def connected(http: httpx.AsyncClient) -> bool:
    return "diffusion_event_bus_connected 1.0" in (await http.get("/metrics")).text


async def until_connected(cluster: Cluster, is_connected: bool) -> None:
    async def is_so() -> bool:
        return [await connected(http) for http in (cluster.one, cluster.two)] == [is_connected] * 2

    await eventually(is_so)


async def test_events_at_one_control_plane_reach_clients_of_the_other_also_without_valkey(
    cluster: Cluster,
) -> None:
    worker = await HandWorker.register(cluster.two)
    await until_connected(cluster, True)
    await run_a_job(cluster, worker, has_bus=True)
    cluster.valkey.kill()
    await until_connected(cluster, False)
    await run_a_job(cluster, worker, has_bus=False)
    cluster.valkey.start()
    await until_connected(cluster, True)
    await run_a_job(cluster, worker, has_bus=True)


async def test_a_client_goes_on_at_the_other_one_and_has_missed_nothing(cluster: Cluster) -> None:
    worker = await HandWorker.register(cluster.two)
    job_id = await submit(cluster.one)
    async with following(cluster.one, job_id) as before:
        [lease] = await worker.claim(wait=25)
        await before.until("running")
        await worker.report(lease, 1, 4, PNG)
        await before.until("progress", step=1)
        assert "preview" in [event["type"] for event in before.events]
        cluster.replicas[0].kill()
    await worker.complete(lease)
    async with following(cluster.two, job_id, after=before.stored[-1][0]) as after:
        await after.until("succeeded")
    assert before.stored + after.stored == [(1, "queued"), (2, "running"), (3, "succeeded")]
    answer = await cluster.two.get(f"/v1/jobs/{job_id}/result")
    assert answer.content == PNG, "whichever took it in"
