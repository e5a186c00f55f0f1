"""Revocation of a key ends what was opened with it, and nothing else."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, closing, suppress

import httpx
import pytest
import websockets
from fastapi import FastAPI

from diffuserve.api.auth import access, revocation
from diffuserve.api.config import ApiConfig
from diffuserve.api.server.http_server import serving
from diffuserve.cli.servers.listening import address_of, listen
from diffuserve.domain.tenant import ApiKey, Role
from diffuserve.jobs.store import JobStore
from support.hand_worker import HandWorker
from support.waiting import HANG_SECONDS, eventually

CAT = {"input": {"prompt": "a cat"}}
Connect = Callable[..., Awaitable[tuple[ApiKey, httpx.AsyncClient]]]


@pytest.fixture
async def server(
    make_app: Callable[[ApiConfig], FastAPI], monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[str]:
    """Serve the application as `diffuserve api` does."""
    monkeypatch.setattr(revocation, "_PERIOD_SECONDS", 0.02)
    app = make_app(ApiConfig(poll_seconds=0.2))
    with closing(listen("127.0.0.1", 0)) as listener:
        async with serving(app, listener):
            yield address_of(listener)


@pytest.fixture
async def connect(server: str, store: JobStore) -> AsyncGenerator[Connect]:
    """Yield a function that makes a key, and a client with it."""
    async with AsyncExitStack() as stack:

        async def connect(role: Role, tenant: str | None = None) -> tuple[ApiKey, httpx.AsyncClient]:
            key, secret = await store.keys.create(role, tenant_id=tenant)
            headers = {"authorization": f"Bearer {secret}"}
            http = httpx.AsyncClient(base_url=server, headers=headers, timeout=HANG_SECONDS, trust_env=False)
            return key, await stack.enter_async_context(http)

        yield connect


async def read_stream(http: httpx.AsyncClient, path: str, started: asyncio.Event) -> int:
    """Return how many bytes a stream had until its regular end."""
    num_bytes = 0
    async with http.stream("GET", path) as response:
        async for part in response.aiter_bytes():
            num_bytes += len(part)
            started.set()
    return num_bytes


async def read_socket(http: httpx.AsyncClient, path: str, started: asyncio.Event) -> int | None:
    """Return the code with which a WebSocket was closed."""
    headers = {"authorization": http.headers["authorization"]}
    url = str(http.base_url).replace("http", "ws").rstrip("/") + path
    async with websockets.connect(url, additional_headers=headers) as socket:
        with suppress(websockets.ConnectionClosedError):
            async for _ in socket:
                started.set()
    return socket.close_code


async def test_a_revoked_key_ends_streams_sockets_and_long_polls(connect: Connect, store: JobStore) -> None:
    _, machine = await connect(Role.WORKER)
    await HandWorker.register(machine)
    key, ada = await connect(Role.TENANT, "ada")
    _, also_ada = await connect(Role.TENANT, "ada")
    path = f"/v1/jobs/{(await ada.post('/v1/jobs', json=CAT)).json()['id']}"
    started = [asyncio.Event() for _ in range(4)]
    other = asyncio.create_task(read_stream(also_ada, f"{path}/events", started[3]))
    stream = asyncio.create_task(read_stream(ada, f"{path}/events", started[0]))
    sockets = [
        asyncio.create_task(read_socket(ada, f"{path}/ws", started[1])),
        asyncio.create_task(read_socket(ada, f"/ws{path.removeprefix('/v1')}", started[2])),
    ]
    polls = [
        asyncio.create_task(ada.get(path, params={"wait": 60})),
        asyncio.create_task(ada.post("/v1/jobs", json=CAT, headers={"prefer": "wait=60"})),
        asyncio.create_task(ada.post("/v1/images/generations", json={"prompt": "a cat"})),
    ]
    await asyncio.gather(*(event.wait() for event in started))
    await eventually(lambda: is_submitted(store, 3))
    await store.keys.revoke(key.id)
    async with asyncio.timeout(HANG_SECONDS):
        assert await stream > 0
        assert await asyncio.gather(*sockets) == [1008, 1008]
        for poll in polls:
            response = await poll
            assert response.status_code == 401
        assert polls[0].result().json()["code"] == "unauthorized"
    assert (await ada.get(path)).status_code == 401, "the end is not followed by another connection"
    assert not other.done(), "another key of the same tenant is still valid"
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)


async def is_submitted(store: JobStore, num_jobs: int) -> bool:
    return len(await store.jobs.list_jobs()) == num_jobs


async def test_a_revoked_worker_claims_nothing_more(connect: Connect, store: JobStore) -> None:
    key, machine = await connect(Role.WORKER)
    worker = await HandWorker.register(machine)
    polls = [
        asyncio.create_task(machine.post(f"/v1/workers/{worker.id}/claim?wait=25", json=claim())),
        asyncio.create_task(machine.get(f"/v1/workers/{worker.id}/control?wait=25")),
    ]
    await asyncio.sleep(0)
    await store.keys.revoke(key.id)
    async with asyncio.timeout(HANG_SECONDS):
        assert [(await poll).status_code for poll in polls] == [401, 401]


def claim() -> dict[str, object]:
    return {"claim_id": "c", "num_jobs": 1}


async def test_the_first_key_ends_what_was_opened_without_one(
    server: str, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "_HAS_KEYS_SECONDS", 0.02)
    async with httpx.AsyncClient(base_url=server, timeout=HANG_SECONDS, trust_env=False) as http:
        await HandWorker.register(http)
        job_id = (await http.post("/v1/jobs", json=CAT)).json()["id"]
        started = asyncio.Event()
        stream = asyncio.create_task(read_stream(http, f"/v1/jobs/{job_id}/events", started))
        await started.wait()
        await store.keys.create(Role.OPERATOR)
        async with asyncio.timeout(HANG_SECONDS):
            assert await stream > 0


async def test_open_requests_cost_one_query_for_all_of_them(
    connect: Connect, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, machine = await connect(Role.WORKER)
    await HandWorker.register(machine)
    clients = [(await connect(Role.TENANT, name))[1] for name in ("ada", "bob", "eve")]
    asked: list[set[str]] = []
    ask = store.keys.valid_among

    async def valid_among(key_ids: set[str]) -> set[str]:
        asked.append(set(key_ids))
        return await ask(key_ids)

    monkeypatch.setattr(store.keys, "valid_among", valid_among)
    streams = []
    for http in clients:
        path = f"/v1/jobs/{(await http.post('/v1/jobs', json=CAT)).json()['id']}/events"
        for _ in range(3):
            started = asyncio.Event()
            streams.append(asyncio.create_task(read_stream(http, path, started)))
            await started.wait()
    asked.clear()
    await eventually(lambda: len(asked) >= 2)
    assert [len(key_ids) for key_ids in asked[:2]] == [3, 3]
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)


async def test_a_revoked_operator_watches_the_server_no_more(connect: Connect, store: JobStore) -> None:
    key, operator = await connect(Role.OPERATOR)
    started = asyncio.Event()
    watching = asyncio.create_task(read_stream(operator, "/v1/operations/events", started))
    await started.wait()
    await store.keys.revoke(key.id)
    assert await watching > 0
