"""Server-sent events and WebSockets, over a real server."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
import websockets
from httpx_sse import ServerSentEvent, aconnect_sse

from diffuserve.api.config import ApiConfig
from diffuserve.domain.tenant import Role
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from support.hand_worker import PNG, HandWorker
from support.waiting import HANG_SECONDS

CAT = {"input": {"prompt": "a cat"}}


@pytest.fixture
async def web(server: str) -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server, timeout=HANG_SECONDS) as web:
        yield web


@pytest.fixture
async def job_id(http: httpx.AsyncClient, worker: HandWorker) -> str:
    return str((await http.post("/v1/jobs", json=CAT)).json()["id"])


async def read(web: httpx.AsyncClient, path: str, **headers: str) -> list[ServerSentEvent]:
    """Return every event of a stream, which must end by itself."""
    async with asyncio.timeout(HANG_SECONDS), aconnect_sse(web, "GET", path, headers=headers) as source:
        assert source.response.headers["content-type"].startswith("text/event-stream")
        return [event async for event in source.aiter_sse()]


async def watched(bus: MemoryEventBus, job_id: str) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not bus.is_watched(f"job:{job_id}"):
            await asyncio.sleep(0.001)


async def requires_keys(web: httpx.AsyncClient) -> None:
    """Wait until the server has noticed its first key."""
    async with asyncio.timeout(HANG_SECONDS):
        while (await web.get("/v1/jobs")).status_code != 401:
            await asyncio.sleep(0.02)


async def run(worker: HandWorker) -> None:
    [lease] = await worker.claim()
    await worker.report(lease, 1, 4)
    await worker.report(lease, 2, 4, preview=PNG)
    await worker.complete(lease)


async def test_a_stream_has_every_event_of_a_job(
    web: httpx.AsyncClient, worker: HandWorker, job_id: str
) -> None:
    """Let the worker take each step when the stream has the event of the step before."""
    lease: Any = None
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(HANG_SECONDS), aconnect_sse(web, "GET", f"/v1/jobs/{job_id}/events") as source:
        async for event in source.aiter_sse():
            events.append(json.loads(event.data))
            assert events[-1]["type"] == event.event
            match event.event:
                case "queued":
                    [lease] = await worker.claim()
                case "running":
                    await worker.report(lease, 1, 4)
                case "progress" if events[-1]["data"]["step"] == 1:
                    await worker.report(lease, 2, 4, preview=PNG)
                case "progress":
                    await worker.complete(lease)
    assert [(event["type"], event["seq"]) for event in events] == [
        ("queued", 1),
        ("running", 2),
        ("progress", None),
        ("preview", None),
        ("progress", None),
        ("succeeded", 3),
    ]
    assert all(set(event) == {"job_id", "seq", "type", "data", "created_at"} for event in events)
    assert {event["job_id"] for event in events} == {job_id}
    steps = {"phase": "denoise", "step": 1, "total": 4, "fraction": 0.25}
    assert events[2]["data"] == steps | {"frames": 0, "num_frames": 0}
    assert events[3]["data"] == {"index": 2, "image": 0, "b64": base64.b64encode(PNG).decode()}


async def test_a_stream_resumes_after_the_last_event_received(
    web: httpx.AsyncClient, worker: HandWorker, job_id: str
) -> None:
    await run(worker)
    path = f"/v1/jobs/{job_id}/events"
    whole = [event.event for event in await read(web, path)]
    assert whole == ["queued", "running", "succeeded"]
    assert [event.event for event in await read(web, path, **{"last-event-id": "1"})] == whole[1:]
    assert [event.event for event in await read(web, f"{path}?after=2")] == whole[2:]
    assert await read(web, path, **{"last-event-id": "3"}) == []
    assert [event.event for event in await read(web, path, **{"last-event-id": "nonsense"})] == whole


async def test_a_stream_pings_while_nothing_happens(
    make_app: Any, bus: MemoryEventBus, job_id: str, http: httpx.AsyncClient
) -> None:
    app = make_app(ApiConfig(ping_seconds=0.1))
    from_server: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if not any(b": ping" in chunk for chunk in from_server):
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        from_server.append(message.get("body", b""))
        if b": ping" in from_server[-1]:
            pinged.set()

    pinged = asyncio.Event()
    path = f"/v1/jobs/{job_id}/events"
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"api.test")],
        "server": ("api.test", 80),
        "scheme": "http",
    }
    serving = asyncio.create_task(app(scope, receive, send))
    async with asyncio.timeout(HANG_SECONDS):
        await pinged.wait()
    await http.post(f"/v1/jobs/{job_id}/cancel")
    await asyncio.wait_for(serving, HANG_SECONDS)
    assert any(b"event: canceled" in chunk for chunk in from_server)


async def test_a_stream_ends_when_its_job_is_deleted(
    web: httpx.AsyncClient, bus: MemoryEventBus, job_id: str
) -> None:
    reading = asyncio.create_task(read(web, f"/v1/jobs/{job_id}/events"))
    await watched(bus, job_id)
    await web.delete(f"/v1/jobs/{job_id}")
    assert (await reading)[0].event == "queued"


async def test_a_websocket_sends_the_same_events_and_closes_with_1000(
    server: str, worker: HandWorker, web: httpx.AsyncClient, job_id: str
) -> None:
    await run(worker)
    streamed = [json.loads(event.data) for event in await read(web, f"/v1/jobs/{job_id}/events")]
    url = server.replace("http", "ws") + f"/v1/jobs/{job_id}/ws"
    async with asyncio.timeout(HANG_SECONDS), websockets.connect(url) as socket:
        events = [json.loads(message) async for message in socket]
    assert events == streamed
    assert socket.close_code == 1000
    async with asyncio.timeout(HANG_SECONDS), websockets.connect(f"{url}?after=2") as socket:
        assert [json.loads(message)["type"] async for message in socket] == ["succeeded"]


async def test_a_closed_websocket_ends_its_subscription(
    server: str, bus: MemoryEventBus, worker: HandWorker, job_id: str
) -> None:
    async with websockets.connect(server.replace("http", "ws") + f"/v1/jobs/{job_id}/ws") as socket:
        assert json.loads(await socket.recv())["type"] == "queued"
        assert bus.is_watched(f"job:{job_id}")
    async with asyncio.timeout(HANG_SECONDS):
        while bus.is_watched(f"job:{job_id}"):
            await asyncio.sleep(0.01)


async def test_websockets_take_keys_from_the_header_or_the_query(
    server: str, web: httpx.AsyncClient, store: JobStore, job_id: str
) -> None:
    _, theirs = await store.keys.create(Role.OPERATOR)
    _, others = await store.keys.create(Role.TENANT, tenant_id="other")
    await requires_keys(web)
    url = server.replace("http", "ws") + f"/v1/jobs/{job_id}/ws"
    for target, status in (
        (url, 401),
        (f"{url}?access_token=wrong", 401),
        (f"{url}?access_token={others}", 404),
    ):
        with pytest.raises(websockets.InvalidStatus) as raised:
            await websockets.connect(target)
        assert raised.value.response.status_code == status
        assert json.loads(raised.value.response.body or b"")["status"] == status
    headers = {"authorization": f"Bearer {theirs}"}
    for connection in (
        websockets.connect(f"{url}?access_token={theirs}"),
        websockets.connect(url, additional_headers=headers),
    ):
        async with connection as socket:
            assert json.loads(await socket.recv())["type"] == "queued"
