"""API keys, roles, tenants and plans."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict, replace

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.tenant import PlanOverrides, Role
from diffuserve.jobs.security.keys import make_key
from diffuserve.jobs.store import JobStore
from support.hand_worker import HAND_SPEC, HandWorker

CAT = {"input": {"prompt": "a cat"}}
MakeApp = Callable[[ApiConfig], FastAPI]
Connect = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture
async def connect(make_app: MakeApp, store: JobStore) -> AsyncGenerator[Connect]:
    """Yield a function that makes a client with a new key of the given role, tenant and plan."""
    app = make_app(ApiConfig())
    clients: list[httpx.AsyncClient] = []

    async def connect(role: Role, tenant: str | None = None, plan: str | None = None) -> httpx.AsyncClient:
        _, secret = await store.keys.create(role, tenant_id=tenant, plan=plan)
        clients.append(
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app),
                base_url="http://api.test",
                headers={"authorization": f"Bearer {secret}"},
            )
        )
        return clients[-1]

    yield connect
    for client in clients:
        await client.aclose()


@pytest.fixture
async def hand(connect: Connect) -> HandWorker:
    return await HandWorker.register(await connect(Role.WORKER))


@pytest.mark.parametrize("header", [None, "Bearer nonsense", "Basic dTpw", "Bearer "])
async def test_a_request_without_a_valid_key_is_unauthorized(
    connect: Connect, make_app: MakeApp, header: str | None
) -> None:
    await connect(Role.TENANT, "ada")
    headers = {} if header is None else {"authorization": header}
    transport = httpx.ASGITransport(make_app(ApiConfig()))
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test", headers=headers) as http:
        for method, path in (("POST", "/v1/jobs"), ("GET", "/v1/jobs"), ("POST", "/v1/workers")):
            response = await http.request(method, path, json={})
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["code"] == "unauthorized"
        for path in ("/healthz", "/docs", "/openapi.json"):
            assert (await http.get(path)).status_code == 200
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/readyz")).json()["code"] == "server_unavailable"


async def test_disabled_auth_opens_every_route_although_keys_exist(
    connect: Connect, make_app: MakeApp
) -> None:
    await connect(Role.TENANT, "ada")
    transport = httpx.ASGITransport(make_app(ApiConfig(auth=False)))
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as http:
        await HandWorker.register(http)
        assert (await http.post("/v1/jobs", json=CAT)).status_code == 202
        assert (await http.get("/v1/workers")).status_code == 200


async def test_a_job_of_another_tenant_does_not_exist(connect: Connect, hand: HandWorker) -> None:
    ada, bob = await connect(Role.TENANT, "ada"), await connect(Role.TENANT, "bob")
    job = (await ada.post("/v1/jobs", json=CAT)).json()
    [lease] = await hand.claim()
    await hand.complete(lease)
    path = f"/v1/jobs/{job['id']}"
    for method, url in (
        ("GET", path),
        ("GET", f"{path}/events"),
        ("GET", f"{path}/result"),
        ("POST", f"{path}/cancel"),
        ("DELETE", path),
        ("GET", f"/jobs/{job['id']}"),
        ("DELETE", f"/jobs/{job['id']}"),
    ):
        response = await bob.request(method, url)
        assert (response.status_code, response.json()["code"]) == (404, "job_not_found"), url
    assert (await bob.get("/v1/jobs")).json()["data"] == []
    assert (await ada.get(f"{path}/result")).status_code == 200


async def test_operators_drain_workers_and_tenants_do_not(connect: Connect, hand: HandWorker) -> None:
    ada, operator = await connect(Role.TENANT, "ada"), await connect(Role.OPERATOR)
    path = f"/v1/workers/{hand.id}/drain"
    assert (await ada.post(path)).json()["code"] == "forbidden"
    assert (await operator.post(path)).status_code == 204
    [worker] = (await operator.get("/v1/workers")).json()["data"]
    assert worker["is_draining"]
    assert (await operator.post("/v1/workers/worker_0/drain")).json()["code"] == "worker_not_found"


async def test_operators_alone_order_models_and_a_worker_alone_offers_them(
    connect: Connect, hand: HandWorker
) -> None:
    ada, operator, other = (
        await connect(Role.TENANT, "ada"),
        await connect(Role.OPERATOR),
        await connect(Role.WORKER),
    )
    have = {"name": "hand", "license": "MIT", "makes": "images"}
    (await hand.beat("ready", orders={"models": [have]})).raise_for_status()
    path = f"/v1/workers/{hand.id}/order"
    assert (await ada.post(path, json={"model": "hand"})).json()["code"] == "forbidden"
    assert (await ada.delete(path)).json()["code"] == "forbidden"
    assert (await operator.post(path, json={"model": "https://example.com/x"})).status_code == 422
    placed = await operator.post(path, json={"model": "hand"})
    assert placed.status_code == 202
    assert (await hand.beat("ready", orders={"models": [have]})).json()["order"] == placed.json()
    assert (await operator.delete(path)).status_code == 204
    assert (await hand.beat("ready")).json()["order"] is None
    offers = {"models": [{"spec": asdict(replace(HAND_SPEC, name="more"))}]}
    for client, code in ((ada, "forbidden"), (operator, "forbidden"), (other, "worker_not_found")):
        assert (await client.post(f"/v1/workers/{hand.id}/models", json=offers)).json()["code"] == code


async def test_a_worker_that_deregisters_is_gone_and_no_other_may_do_so_for_it(
    connect: Connect, hand: HandWorker
) -> None:
    operator, other = await connect(Role.OPERATOR), await connect(Role.WORKER)
    path = f"/v1/workers/{hand.id}"
    assert (await other.delete(path)).json()["code"] == "worker_not_found"
    assert len((await operator.get("/v1/workers")).json()["data"]) == 1
    for _repetition in range(2):
        assert (await hand.deregister()).status_code == 204
    assert (await operator.get("/v1/workers")).json()["data"] == []


async def test_operators_see_every_tenants_jobs_and_the_workers(connect: Connect, hand: HandWorker) -> None:
    ada, operator = await connect(Role.TENANT, "ada"), await connect(Role.OPERATOR)
    job = (await ada.post("/v1/jobs", json=CAT)).json()
    assert (await operator.get(f"/v1/jobs/{job['id']}")).status_code == 200
    assert [listed["id"] for listed in (await operator.get("/v1/jobs")).json()["data"]] == [job["id"]]
    [worker] = (await operator.get("/v1/workers")).json()["data"]
    assert (worker["id"], worker["models"]) == (hand.id, ["hand"])


async def test_operators_have_an_identity_of_their_own(
    connect: Connect, hand: HandWorker, make_app: MakeApp, store: JobStore
) -> None:
    """A key for the tenant `default`, made before the name was reserved, still works, and sees its own."""
    old_key = make_key(Role.TENANT, "default", None, PlanOverrides())
    await store.keys._writer.run(old_key)
    operator, default = await connect(Role.OPERATOR), await connect(Role.TENANT, "ada")
    default.headers["authorization"] = f"Bearer {old_key.shown}"
    own = (await operator.post("/v1/jobs", json=CAT)).json()
    theirs = (await default.post("/v1/jobs", json=CAT)).json()
    assert (await store.jobs.get(own["id"])).tenant_id == "operator"
    assert [job["id"] for job in (await default.get("/v1/jobs")).json()["data"]] == [theirs["id"]]
    assert (await default.get(f"/v1/jobs/{own['id']}")).status_code == 404
    assert (await operator.get(f"/v1/jobs/{theirs['id']}")).status_code == 200
    path = "/v1/webhooks/secret"
    assert (await default.get(path)).json() != (await operator.get(path)).json()


async def test_each_role_is_forbidden_the_routes_of_the_others(connect: Connect, hand: HandWorker) -> None:
    ada, worker = await connect(Role.TENANT, "ada"), await connect(Role.WORKER)
    job = (await ada.post("/v1/jobs", json=CAT)).json()
    [lease] = await hand.claim()
    end = {"lease_token": lease.lease_token, "error": {"code": "x", "message": "x"}}
    registration = {"models": [], "report": {"state": "ready"}}
    forbidden = [
        await ada.post("/v1/workers", json=registration),
        await ada.get("/v1/workers"),
        await ada.post(f"/v1/workers/{hand.id}/claim", json={"claim_id": "c", "num_jobs": 1}),
        await ada.post(f"/v1/workers/{hand.id}/drain"),
        await ada.get(f"/v1/workers/{hand.id}/control"),
        await ada.post(f"/v1/leases/{job['id']}/fail", json=end),
        await ada.put(f"/v1/leases/{job['id']}/files/a.png", headers={"lease-token": "1"}, content=b""),
        await ada.post(f"/v1/jobs/{job['id']}/requeue"),
        await worker.post("/v1/jobs", json=CAT),
        await worker.get(f"/v1/jobs/{job['id']}"),
        await worker.get("/v1/workers"),
        await worker.post("/generate", json={"prompt": "a"}),
    ]
    assert [(response.status_code, response.json()["code"]) for response in forbidden] == [
        (403, "forbidden")
    ] * len(forbidden)
    assert (await ada.get(f"/v1/jobs/{job['id']}")).json()["status"] == "running"


async def test_a_known_reader_reads_the_metrics_without_the_database_and_nobody_else_does(
    connect: Connect, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, stranger, tenant = [await connect(role) for role in (Role.MONITOR, Role.MONITOR, Role.TENANT)]
    assert (await known.get("/metrics")).status_code == 200
    assert (await tenant.get("/metrics")).status_code == 403

    async def away(*_arguments: object) -> None:
        raise ServerUnavailable("the database is unavailable")

    async def is_away(_seconds: float) -> bool:
        return False

    app = known._transport.app  # type: ignore[attr-defined]
    app.state.services.authenticator._keys.clear()
    with monkeypatch.context() as outage:
        outage.setattr(store.keys, "authenticate", away)
        outage.setattr(store.operations, "responds", is_away)
        told = await known.get("/metrics")
        assert told.status_code == 200
        assert "diffusion_database_up 0.0" in told.text
        assert (await stranger.get("/metrics")).status_code == 503
        assert (await tenant.get("/metrics")).status_code in (403, 503)
        assert (await known.get("/v1/workers")).status_code in (403, 503), "it is for the metrics alone"
    await store.keys.revoke((await store.keys.list_keys())[0].id)
    app.state.services.authenticator._keys.clear()
    assert (await known.get("/metrics")).status_code == 401


async def test_a_plan_limits_the_priorities_of_its_tenants(connect: Connect, hand: HandWorker) -> None:
    ada = await connect(Role.TENANT, "ada", "free")
    response = await ada.post("/v1/jobs", json=CAT | {"priority": "interactive"})
    assert (response.status_code, response.json()["code"]) == (403, "band_not_allowed")
    assert (await ada.post("/v1/jobs", json=CAT)).json()["priority"] == "standard"
    assert (await ada.post("/v1/jobs", json=CAT | {"priority": "batch"})).json()["priority"] == "batch"


async def test_a_free_tenant_that_floods_interactive_delays_no_pro_tenant(
    connect: Connect, hand: HandWorker
) -> None:
    free, pro = await connect(Role.TENANT, "free", "free"), await connect(Role.TENANT, "pro", "pro")
    for _ in range(5):
        rejected = await free.post("/v1/jobs", json=CAT | {"priority": "interactive"})
        assert rejected.status_code == 403
        assert (await free.post("/v1/jobs", json=CAT)).status_code == 202
    job = (await pro.post("/v1/jobs", json=CAT)).json()
    assert job["priority"] == "interactive"
    [lease] = await hand.claim()
    assert lease.job_id == job["id"]


async def test_a_full_queue_responds_with_retry_after(
    connect: Connect, hand: HandWorker, store: JobStore
) -> None:
    await store.keys.create(Role.TENANT, tenant_id="ada", overrides=PlanOverrides(max_queued=5))
    ada = await connect(Role.TENANT, "ada")
    responses = [await ada.post("/v1/jobs", json=CAT) for _ in range(6)]
    assert {response.status_code for response in responses[:5]} == {202}
    assert (responses[5].status_code, responses[5].json()["code"]) == (429, "queue_full")
    assert int(responses[5].headers["retry-after"]) >= 1


async def test_signed_urls_need_no_key_and_detect_changes(connect: Connect, hand: HandWorker) -> None:
    ada = await connect(Role.TENANT, "ada")
    job = (await ada.post("/v1/jobs", json=CAT)).json()
    await hand.complete((await hand.claim())[0])
    done = (await ada.get(f"/v1/jobs/{job['id']}")).json()
    url = httpx.URL(done["result"]["artifacts"][0]["url"])
    del ada.headers["authorization"]
    assert (await ada.get(url)).status_code == 200
    expires = int(url.params["expires"])
    changed_urls = [
        url.copy_set_param("expires", expires + 1),
        url.copy_set_param("signature", url.params["signature"][:-1]),
        url.copy_set_param("signature", "\N{SNOWMAN}"),
        url.copy_with(path=url.path.replace("/1/", "/2/")),
        url.copy_with(path=url.path.replace("0.png", "1.png")),
    ]
    for changed_url in changed_urls:
        response = await ada.get(changed_url)
        assert (response.status_code, response.json()["code"]) == (403, "forbidden"), changed_url
    assert (await ada.get(f"/v1/jobs/{job['id']}/result")).status_code == 401


async def test_signed_urls_expire(make_app: MakeApp, hand: HandWorker) -> None:
    app = make_app(ApiConfig(auth=False, result_url_seconds=-1))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as http:
        job = (await http.post("/v1/jobs", json=CAT)).json()
        await hand.complete((await hand.claim())[0])
        done = (await http.get(f"/v1/jobs/{job['id']}")).json()
        response = await http.get(done["result"]["artifacts"][0]["url"])
        assert response.status_code == 403
        assert "expired" in response.json()["detail"]
