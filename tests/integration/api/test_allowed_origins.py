"""Pages of other sites use the API from a browser if their origin is allowed, and else not."""

import json
from collections.abc import AsyncGenerator, Callable

import httpx
import pytest
import websockets
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.tenant import Role
from diffuserve.jobs.store import JobStore
from diffuserve.settings import Settings
from support.hand_worker import HandWorker

APP, EVIL = "https://app.example.com", "https://evil.example"
CAT = {"input": {"prompt": "a cat"}}
CROSS_SITE = {"sec-fetch-site": "cross-site"}


def preflight(origin: str, method: str = "POST") -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type,idempotency-key,x-stainless-os",
    }


@pytest.fixture
def app(make_app: Callable[[ApiConfig], FastAPI]) -> FastAPI:
    return make_app(ApiConfig(poll_seconds=0.2, allowed_origins=(APP,)))


@pytest.fixture
async def plain(make_app: Callable[[ApiConfig], FastAPI]) -> AsyncGenerator[httpx.AsyncClient]:
    """Call a server with the default configuration."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(make_app(ApiConfig())), base_url="http://api.test"
    ) as http:
        yield http


async def test_a_page_of_an_allowed_origin_submits_and_reads(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    asked = await http.options("/v1/jobs", headers=preflight(APP))
    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, APP)
    for header in ("authorization", "idempotency-key", "x-stainless-os"):
        assert header in asked.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in asked.headers
    sent = await http.post("/v1/jobs", json=CAT, headers={"origin": APP} | CROSS_SITE)
    assert (sent.status_code, sent.headers["access-control-allow-origin"]) == (202, APP)
    assert "location" in sent.headers["access-control-expose-headers"]
    assert "Origin" in sent.headers["vary"]
    refused = await http.post("/v1/jobs", json={}, headers={"origin": APP})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (422, APP)


@pytest.mark.parametrize(
    "origin", [EVIL, "null", "http://app.example.com", f"{APP}:8443", f"{APP}.evil.example"]
)
async def test_a_page_of_another_origin_does_not(http: httpx.AsyncClient, origin: str) -> None:
    asked = await http.options("/v1/jobs", headers=preflight(origin))
    read = await http.get("/v1/jobs", headers={"origin": origin})
    sent = await http.post("/v1/jobs", json=CAT, headers={"origin": origin} | CROSS_SITE)
    assert (asked.status_code, read.status_code, sent.status_code) == (400, 200, 403)
    assert all("access-control-allow-origin" not in response.headers for response in (asked, read, sent))
    assert "DIFFUSERVE_ALLOWED_ORIGINS" in sent.json()["detail"]


async def test_workers_routes_stay_out_of_a_browsers_reach(http: httpx.AsyncClient) -> None:
    asked = await http.options("/v1/leases/a/files/b", headers=preflight(APP, "PUT"))
    assert asked.status_code == 400


async def test_no_origin_is_allowed_by_default(plain: httpx.AsyncClient) -> None:
    asked = await plain.options("/v1/jobs", headers=preflight(APP))
    read = await plain.get("/v1/jobs", headers={"origin": APP})
    assert asked.status_code == 405
    assert not any(name.startswith("access-control") for name in (*asked.headers, *read.headers))


async def test_a_websocket_of_an_allowed_page_is_accepted(
    server: str, http: httpx.AsyncClient, worker: HandWorker
) -> None:
    job_id = (await http.post("/v1/jobs", json=CAT)).json()["id"]
    url = f"{server.replace('http', 'ws', 1)}/ws/jobs/{job_id}"
    async with websockets.connect(url, additional_headers={"origin": APP}) as socket:
        assert json.loads(await socket.recv())["job_id"] == job_id
    with pytest.raises(websockets.InvalidStatus):
        await websockets.connect(url, additional_headers={"origin": EVIL})


async def test_with_keys_every_origin_may_be_allowed(
    make_app: Callable[[ApiConfig], FastAPI], store: JobStore
) -> None:
    _, secret = await store.keys.create(Role.OPERATOR)
    transport = httpx.ASGITransport(make_app(ApiConfig(allowed_origins=("*",))))
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as http:
        for key, status in ((secret, 200), ("wrong", 401)):
            headers = {"origin": EVIL, "authorization": f"Bearer {key}"}
            response = await http.get("/v1/jobs", headers=headers)
            assert (response.status_code, response.headers["access-control-allow-origin"]) == (status, "*")


async def test_on_an_open_server_every_origin_is_not_its_own(
    make_app: Callable[[ApiConfig], FastAPI],
) -> None:
    transport = httpx.ASGITransport(make_app(ApiConfig(allowed_origins=("*",))))
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as http:
        assert (await http.post("/v1/jobs", json=CAT, headers={"origin": EVIL})).status_code == 403


@pytest.mark.parametrize(
    "origin", ["app.example.com", f"{APP}/", f"{APP}/path", "https://App.example.com", "null", ""]
)
def test_what_is_no_origin_is_refused_with_an_example(origin: str) -> None:
    with pytest.raises(
        InvalidParams, match=r"allowed_origins.*is not an origin such as https://app.example.com"
    ):
        Settings.with_options(allowed_origins=[origin])


@pytest.mark.parametrize(
    "origin", [APP, "http://localhost:3000", "http://[::1]:5173", "chrome-extension://abc", "*"]
)
def test_origins_are_settings(origin: str) -> None:
    settings = Settings.with_options(allowed_origins=[origin])
    assert settings.api_config(auth=True).allowed_origins == (origin,)
