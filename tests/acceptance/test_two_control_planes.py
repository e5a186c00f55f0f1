"""Two `diffuserve api` on one PostgreSQL and one Valkey, as a load balancer would spread calls over them."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
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

AT_ONCE = 0.5
"""Well under the second after which everyone looks by himself."""

BY_LOOKING = 3.0
_NUMBERS = itertools.count()
STAR = {"input": {"prompt": "a star"}, "num_previews": 1}


class Replica:
    """One control plane."""

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
        return httpx.AsyncClient(base_url=address, timeout=20, trust_env=False)

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
    """What a stream of events says, and when."""

    events: list[dict[str, Any]] = field(default_factory=list)
    heard_at: list[float] = field(default_factory=list)

    @property
    def stored(self) -> list[tuple[int, str]]:
        return [(event["seq"], event["type"]) for event in self.events if event["seq"] is not None]

    async def until(self, kind: str, since: float, seconds: float) -> float:
        """How long after `since` the newest event of that kind came."""
        while not (self.events and self.events[-1]["type"] == kind and self.heard_at[-1] >= since):
            assert time.monotonic() - since < seconds, f"no {kind} within {seconds:g} s, but {self.stored}"
            await asyncio.sleep(0.002)
        return self.heard_at[-1] - since


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
            told.heard_at.append(time.monotonic())
            told.events.append(json.loads(event.data))


async def submit(http: httpx.AsyncClient) -> str:
    answer = await http.post("/v1/jobs", json=STAR)
    return str(answer.raise_for_status().json()["id"])


async def run_a_job(cluster: Cluster, worker: HandWorker, seconds: float) -> list[float]:
    """From submit to result, each thing told within `seconds`; gives how long each took."""
    claiming = asyncio.create_task(worker.claim(wait=10))
    await asyncio.sleep(0.1)  # until it waits
    start = time.monotonic()
    job_id = await submit(cluster.one)
    async with following(cluster.one, job_id) as told:
        [lease] = await claiming
        taken = [time.monotonic() - start, await told.until("running", start, seconds)]
        for step in (1, 2):
            start = time.monotonic()
            await worker.report(lease, step, 4)
            if seconds <= AT_ONCE:  # progress is not stored: without the bus nobody finds it
                taken.append(await told.until("progress", start, seconds))
                shown = (await cluster.one.get(f"/v1/jobs/{job_id}")).json()
                assert shown["progress"]["step"] == step
        start = time.monotonic()
        await worker.complete(lease)
        taken.append(await told.until("succeeded", start, seconds))
        assert told.stored == [(1, "queued"), (2, "running"), (3, "succeeded")]
    assert max(taken) < seconds
    return taken


async def connected(http: httpx.AsyncClient) -> bool:
    return "diffusion_event_bus_connected 1.0" in (await http.get("/metrics")).text


async def until_connected(cluster: Cluster, is_connected: bool) -> None:
    async with asyncio.timeout(10):
        while [await connected(http) for http in (cluster.one, cluster.two)] != [is_connected] * 2:
            await asyncio.sleep(0.05)


async def test_what_happens_at_one_is_told_by_the_other_at_once_and_without_valkey_a_little_later(
    cluster: Cluster,
) -> None:
    worker = await HandWorker.register(cluster.two)
    await run_a_job(cluster, worker, BY_LOOKING)  # the first of everything takes longer
    print("with Valkey:", await run_a_job(cluster, worker, AT_ONCE))
    cluster.valkey.kill()
    await until_connected(cluster, False)
    print("without:", await run_a_job(cluster, worker, BY_LOOKING))
    cluster.valkey.start()
    await until_connected(cluster, True)
    print("with it again:", await run_a_job(cluster, worker, AT_ONCE))


async def test_a_client_goes_on_at_the_other_one_and_has_missed_nothing(cluster: Cluster) -> None:
    worker = await HandWorker.register(cluster.two)
    job_id = await submit(cluster.one)
    async with following(cluster.one, job_id) as before:
        [lease] = await worker.claim(wait=5)
        await before.until("running", 0.0, float("inf"))
        start = time.monotonic()
        await worker.report(lease, 1, 4, PNG)
        await before.until("progress", start, AT_ONCE)
        assert "preview" in [event["type"] for event in before.events]
        cluster.replicas[0].kill()
    await worker.complete(lease)
    async with following(cluster.two, job_id, after=before.stored[-1][0]) as after:
        await after.until("succeeded", 0.0, float("inf"))
    assert before.stored + after.stored == [(1, "queued"), (2, "running"), (3, "succeeded")]
    answer = await cluster.two.get(f"/v1/jobs/{job_id}/result")
    assert answer.content == PNG, "whichever took it in"
