"""The workers' routes."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.domain.jobs.job import Band, NewJob
from diffuserve.domain.tenant import Role
from diffuserve.events.base import QUEUE, worker_topic
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.quotas.local import LocalQuotas
from diffuserve.storage.local import LocalArtifactStore
from support.hand_worker import PNG, HandWorker
from support.waiting import HANG_SECONDS

CAT = {"input": {"prompt": "a cat"}}


@pytest.fixture
def app(make_app: Callable[[ApiConfig], FastAPI]) -> FastAPI:
    """Poll so seldom that changes arrive by the event bus alone."""
    return make_app(ApiConfig(poll_seconds=1_000.0))


async def submit(http: httpx.AsyncClient) -> str:
    return str((await http.post("/v1/jobs", json=CAT)).json()["id"])


async def watched(bus: MemoryEventBus, topic: str) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not bus.is_watched(topic):
            await asyncio.sleep(0)


async def test_registration_returns_the_lease_and_heartbeat_times(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/workers", json={"models": [], "report": {"state": "initializing"}})
    assert response.status_code == 201
    assert response.json()["worker_id"]
    assert (response.json()["lease_seconds"], response.json()["heartbeat_seconds"]) == (30.0, 10.0)


async def test_an_unknown_worker_is_not_found(http: httpx.AsyncClient) -> None:
    unknown = HandWorker(http, "worker_0")
    for response in (
        await http.post("/v1/workers/worker_0/claim", json={"claim_id": "c", "num_jobs": 1}),
        await http.post("/v1/workers/worker_0/heartbeat", json={"report": {"state": "ready"}}),
        await http.get("/v1/workers/worker_0/control"),
        await http.post("/v1/workers/worker_0/drain"),
        await http.get("/v1/workers/a%00b/control"),
    ):
        assert (response.status_code, response.json()["code"]) == (404, "worker_not_found")
    with pytest.raises(httpx.HTTPStatusError):
        await unknown.claim()


async def test_a_waiting_claim_ends_with_the_next_job(
    http: httpx.AsyncClient, worker: HandWorker, bus: MemoryEventBus
) -> None:
    waiting = asyncio.create_task(worker.claim(wait=20))
    await watched(bus, QUEUE)
    job_id = await submit(http)
    [lease] = await asyncio.wait_for(waiting, HANG_SECONDS)
    assert (lease.job_id, lease.lease_token, lease.attempt) == (job_id, 1, 1)


async def test_a_waiting_claim_gets_what_it_left_to_others_as_soon_as_it_may(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore, bus: MemoryEventBus
) -> None:
    """The look comes without a message, and long before the next one for a message that was lost."""
    spot = await HandWorker.register(http, is_spot=True)
    waiting = asyncio.create_task(spot.claim(wait=20))
    await watched(bus, QUEUE)
    job = await store.jobs.submit(
        NewJob(tenant_id="ada", model="hand", input={}, cost_seconds=1.0, band=Band.INTERACTIVE)
    )
    [lease] = await asyncio.wait_for(waiting, HANG_SECONDS)
    assert lease.job_id == job.id


async def test_a_waiting_claim_of_a_full_worker_ends_with_the_next_job_that_goes_before_those_it_has(
    worker: HandWorker, store: JobStore, bus: MemoryEventBus
) -> None:
    place = {"hand": {"band": "standard", "step_tokens": 0}}
    waiting = asyncio.create_task(worker.claim(wait=20, models=["hand"], ahead_of=place))
    await watched(bus, QUEUE)
    new = NewJob(tenant_id="ada", model="hand", input={}, cost_seconds=1.0)
    standard = await store.jobs.submit(new)
    urgent = await store.jobs.submit(replace(new, band=Band.INTERACTIVE))
    [lease] = await asyncio.wait_for(waiting, HANG_SECONDS)
    assert lease.job_id == urgent.id
    assert [lease.job_id for lease in await worker.claim()] == [standard.id]


async def test_a_claim_is_empty_after_its_wait(worker: HandWorker) -> None:
    assert await worker.claim(wait=0.1) == []


async def test_idle_workers_share_their_polls(
    make_app: Callable[[ApiConfig], FastAPI], store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Poll often, for as long as several polls take: each worker claims and asks for commands once."""
    transport = httpx.ASGITransport(make_app(ApiConfig(poll_seconds=0.05)))
    calls = Counter[str]()
    for name in ("try_claim", "control_commands"):
        monkeypatch.setattr(store.leases, name, _counted(calls, name, getattr(store.leases, name)))
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as http:
        workers = [await HandWorker.register(http) for _ in range(10)]
        claims = [worker.claim(wait=0.5) for worker in workers]
        controls = [http.get(f"/v1/workers/{worker.id}/control", params={"wait": 0.5}) for worker in workers]
        assert await asyncio.gather(*claims) == [[]] * 10
        assert {response.text for response in await asyncio.gather(*controls)} == {
            '{"cancel":[],"preempt":[],"lost":[],"drain":false,"order":null}'
        }
    assert calls == {"try_claim": 10, "control_commands": 10}


def _counted(calls: Counter[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    async def count(*arguments: Any) -> Any:
        calls[name] += 1
        return await call(*arguments)

    return count


async def test_polls_find_what_the_bus_has_lost(
    make_app: Callable[[ApiConfig], FastAPI], bus: MemoryEventBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = httpx.ASGITransport(make_app(ApiConfig(poll_seconds=0.05)))
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as http:
        worker = await HandWorker.register(http)
        claiming = asyncio.create_task(worker.claim(wait=20))
        await watched(bus, QUEUE)
        monkeypatch.setattr(bus, "publish", lambda topic, message: None)
        job_id = await submit(http)
        [lease] = await asyncio.wait_for(claiming, HANG_SECONDS)
        assert lease.job_id == job_id
        path = f"/v1/workers/{worker.id}/control"
        waiting = asyncio.create_task(http.get(path, params={"wait": 20}, timeout=30))
        await watched(bus, worker_topic(worker.id))
        await http.post(f"/v1/jobs/{job_id}/cancel")
        assert (await asyncio.wait_for(waiting, HANG_SECONDS)).json()["cancel"] == [job_id]


async def test_the_same_claim_id_gets_the_same_leases(http: httpx.AsyncClient, worker: HandWorker) -> None:
    await submit(http)
    await submit(http)
    first = await worker.claim(num_jobs=1, claim_id="once")
    assert await worker.claim(num_jobs=1, claim_id="once") == first
    assert len(await worker.claim(num_jobs=5)) == 1


async def test_a_waiting_worker_receives_a_cancellation_at_once(
    http: httpx.AsyncClient, worker: HandWorker, bus: MemoryEventBus
) -> None:
    job_id = await submit(http)
    await worker.claim()
    path = f"/v1/workers/{worker.id}/control"
    waiting = asyncio.create_task(http.get(path, params={"wait": 20}, timeout=30))
    await watched(bus, worker_topic(worker.id))
    await http.post(f"/v1/jobs/{job_id}/cancel")
    assert (await asyncio.wait_for(waiting, HANG_SECONDS)).json()["cancel"] == [job_id]
    known = await http.get(path, params={"wait": 0.1, "known": f"other,{job_id}"})
    assert known.json() == {"cancel": [], "preempt": [], "lost": [], "drain": False, "order": None}


async def test_the_drain_command_is_repeated_until_the_worker_drains(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    await submit(http)
    assert (await http.post(f"/v1/workers/{worker.id}/drain")).status_code == 204
    path = f"/v1/workers/{worker.id}/control"
    assert (await http.get(path)).json()["drain"] is True
    assert (await http.get(path, params={"wait": 0.1, "draining": True})).json()["drain"] is False
    assert await worker.claim() == []


async def test_a_waiting_worker_receives_a_lost_lease(
    http: httpx.AsyncClient, worker: HandWorker, bus: MemoryEventBus
) -> None:
    path = f"/v1/workers/{worker.id}/control"
    waiting = asyncio.create_task(http.get(path, params={"wait": 20}, timeout=30))
    await watched(bus, worker_topic(worker.id))
    bus.publish(worker_topic(worker.id), {"type": "lost", "job_id": "job_1"})
    assert (await asyncio.wait_for(waiting, HANG_SECONDS)).json()["lost"] == ["job_1"]


async def test_a_lease_that_the_store_has_is_not_lost_whatever_the_bus_says(
    http: httpx.AsyncClient, worker: HandWorker, bus: MemoryEventBus
) -> None:
    await submit(http)
    [lease] = await worker.claim()
    path = f"/v1/workers/{worker.id}/control"
    waiting = asyncio.create_task(http.get(path, params={"wait": 20}, timeout=30))
    await watched(bus, worker_topic(worker.id))
    for forged in (
        {"type": "lost", "job_id": lease.job_id},
        {"type": "lost"},
        {"type": "lost", "job_id": ["a"]},
        {"job_id": lease.job_id},
        {"type": "lost", "job_id": "job_1"},
    ):
        bus.publish(worker_topic(worker.id), forged)
    assert (await asyncio.wait_for(waiting, HANG_SECONDS)).json()["lost"] == ["job_1"]


async def test_a_key_registers_so_many_workers_a_second(
    store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus
) -> None:
    now = [0.0]
    app = create_app(store, artifacts, bus, ApiConfig(), LocalQuotas(lambda: now[0]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.test") as http:

        async def register() -> httpx.Response:
            return await http.post("/v1/workers", json={"models": [], "report": {"state": "ready"}})

        assert {(await register()).status_code for _ in range(20)} == {201}
        refused = await register()
        assert (refused.status_code, refused.json()["retryable"]) == (503, True), "workers try again"
        now[0] += float(refused.headers["retry-after"])
        assert (await register()).status_code == 201


async def test_a_stale_token_changes_nothing(
    http: httpx.AsyncClient, worker: HandWorker, artifacts: LocalArtifactStore
) -> None:
    job_id = await submit(http)
    [stale] = await worker.claim()
    await worker.release(stale)
    [held] = await worker.claim()
    assert held.lease_token == stale.lease_token + 1
    rejected = [
        await worker.report(stale, 3, 4),
        await worker.upload(stale, "late.png"),
        await worker.fail(stale),
        await worker.release(stale),
        await http.post(
            f"/v1/leases/{job_id}/complete",
            json={"lease_token": stale.lease_token, "result": {}, "actual_seconds": 1},
        ),
    ]
    for response in rejected:
        problem = response.json()
        assert (response.status_code, problem["code"], problem["job_id"]) == (409, "lease_lost", job_id)
    job = (await http.get(f"/v1/jobs/{job_id}")).json()
    assert (job["status"], job["progress"]["step"], job["attempt"]) == ("running", 0, 2)
    assert await artifacts.attempts(-1) == []
    assert "diffusion_fenced_writes_total 5.0" in (await http.get("/metrics")).text


@pytest.mark.parametrize("token", [0, -1, 2**31, 2**70])
async def test_an_invalid_token_is_a_lost_lease(
    http: httpx.AsyncClient, worker: HandWorker, token: int
) -> None:
    job_id = await submit(http)
    await worker.claim()
    for what, body in (("release", {}), ("events", {"phase": "denoise"})):
        response = await http.post(f"/v1/leases/{job_id}/{what}", json={"lease_token": token, **body})
        assert (response.status_code, response.json()["code"]) == (409, "lease_lost")


async def test_complete_may_be_repeated(http: httpx.AsyncClient, worker: HandWorker) -> None:
    await submit(http)
    [lease] = await worker.claim()
    assert (await worker.upload(lease, "0.png")).status_code == 201
    body = {"lease_token": lease.lease_token, "result": {}, "actual_seconds": 1}
    path = f"/v1/leases/{lease.job_id}/complete"
    responses = [await http.post(path, json=body) for _ in range(2)]
    assert [(response.status_code, response.json()["status"]) for response in responses] == [
        (200, "succeeded")
    ] * 2


async def test_an_upload_returns_size_and_hash(http: httpx.AsyncClient, worker: HandWorker) -> None:
    await submit(http)
    [lease] = await worker.claim()
    response = await worker.upload(lease, "image.png", b"abc")
    assert response.json() == {
        "name": "image.png",
        "size_bytes": 3,
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }


@pytest.mark.parametrize("name", [".hidden", "..", "a b", "a%2Fb", "x" * 101, "%00"])
async def test_unsafe_file_names_are_rejected(http: httpx.AsyncClient, worker: HandWorker, name: str) -> None:
    await submit(http)
    [lease] = await worker.claim()
    assert (await worker.upload(lease, name)).status_code in (404, 405)


async def test_a_released_job_goes_to_the_next_worker(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job_id = await submit(http)
    [lease] = await worker.claim()
    assert (await worker.release(lease)).json() == {"job_id": job_id, "status": "queued"}
    other = await HandWorker.register(http)
    assert [lease.job_id for lease in await other.claim()] == [job_id]


async def test_a_job_may_have_many_images(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job = (await http.post("/v1/jobs", json={"input": {"prompt": "a", "num_images": 3, "seed": 5}})).json()
    await worker.complete((await worker.claim())[0])
    done = (await http.get(job["urls"]["self"])).json()
    assert [(image["index"], image["seed"]) for image in done["result"]["artifacts"]] == [
        (0, 5),
        (1, 6),
        (2, 7),
    ]
    assert (await http.get(job["urls"]["result"], params={"index": 2})).content == PNG
    missing = await http.get(job["urls"]["result"], params={"index": 3})
    assert (missing.status_code, missing.json()["code"]) == (404, "artifact_not_found")


async def test_the_result_of_an_unfinished_job_is_a_conflict(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    job_id = await submit(http)
    early = await http.get(f"/v1/jobs/{job_id}/result")
    assert (early.status_code, early.json()["code"]) == (409, "not_finished")
    await http.post(f"/v1/jobs/{job_id}/cancel")
    never = await http.get(f"/v1/jobs/{job_id}/result")
    assert (never.status_code, never.json()["code"]) == (404, "artifact_not_found")


async def test_a_worker_key_acts_for_its_own_workers_alone(http: httpx.AsyncClient, store: JobStore) -> None:
    (_, own), (_, foreign) = [await store.keys.create(Role.WORKER) for _ in range(2)]
    _, tenant = await store.keys.create(Role.TENANT, tenant_id="ada")
    http.headers["authorization"] = f"Bearer {own}"
    mine = await HandWorker.register(http)
    http.headers["authorization"] = f"Bearer {tenant}"
    await submit(http)
    http.headers["authorization"] = f"Bearer {own}"
    [lease] = await mine.claim()
    http.headers["authorization"] = f"Bearer {foreign}"
    stolen = [await mine.report(lease, 1, 4), await mine.upload(lease, "0.png"), await mine.fail(lease)]
    assert {(response.status_code, response.json()["code"]) for response in stolen} == {(409, "lease_lost")}
    claimed = await http.post(f"/v1/workers/{mine.id}/claim", json={"claim_id": "c", "num_jobs": 1})
    drained = await http.post(f"/v1/workers/{mine.id}/drain")
    for response in (claimed, drained):
        assert (response.status_code, response.json()["code"]) == (404, "worker_not_found")
    http.headers["authorization"] = f"Bearer {own}"
    assert (await mine.complete(lease)).status_code == 200
