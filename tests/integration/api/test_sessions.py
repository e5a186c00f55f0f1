"""Sessions of browsers: what the cookie permits, to whom, and for how long."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, closing

import httpx
import pytest
import websockets
from fastapi import FastAPI

from diffuserve.api.auth import access, revocation
from diffuserve.api.config import ApiConfig
from diffuserve.api.server.http_server import serving
from diffuserve.cli.servers.listening import address_of, listen
from diffuserve.domain.tenant import Role
from diffuserve.jobs.security.keys import split_secret
from diffuserve.jobs.store import JobStore
from support.hand_worker import HandWorker
from support.waiting import HANG_SECONDS, eventually

CAT = {"input": {"prompt": "a cat"}}
ORIGIN = {"origin": "http://api.test"}
JSON = {"content-type": "application/json"}
MakeApp = Callable[[ApiConfig], FastAPI]
SignIn = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture
def config() -> ApiConfig:
    return ApiConfig(poll_seconds=0.2)


@pytest.fixture
async def sign_in(make_app: MakeApp, store: JobStore, config: ApiConfig) -> AsyncGenerator[SignIn]:
    """Yield a function that returns a browser with a session: a client that keeps cookies."""
    app = make_app(config)
    async with AsyncExitStack() as stack:
        await offer_model(app, store)

        async def sign_in(role: Role = Role.TENANT, base_url: str = "http://api.test") -> httpx.AsyncClient:
            tenant = "ada" if role is Role.TENANT else None
            _, secret = await store.keys.create(role, tenant_id=tenant)
            http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base_url)
            await stack.enter_async_context(http)
            response = await http.post("/v1/session", json={"key": f" {secret}\n"})
            http.headers["origin"] = base_url
            if response.is_success:
                http.headers["x-csrf-token"] = response.json()["csrf_token"]
            return http

        yield sign_in


async def offer_model(app: FastAPI, store: JobStore) -> None:
    """Have a worker register, so that jobs are accepted."""
    _, secret = await store.keys.create(Role.WORKER)
    headers = {"authorization": f"Bearer {secret}"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test", headers=headers) as http:
        await HandWorker.register(http)


async def test_a_session_takes_the_place_of_a_key(sign_in: SignIn) -> None:
    http = await sign_in()
    session = (await http.get("/v1/session")).json()
    assert (session["is_open"], session["role"], session["tenant_id"]) == (False, "tenant", "ada")
    submitted = await http.post("/v1/jobs", json=CAT)
    assert submitted.status_code == 202, submitted.text
    assert (await http.get(f"/v1/jobs/{submitted.json()['id']}")).json()["status"] == "queued"
    assert (await http.get("/v1/workers")).status_code == 403, "the role stays that of the key"

    assert (await http.delete("/v1/session")).status_code == 204
    assert (await http.get("/v1/session")).json()["role"] is None
    assert (await http.get("/v1/jobs")).status_code == 401


async def test_a_key_signs_out_everywhere_and_in_again(make_app: MakeApp, store: JobStore) -> None:
    app, other = make_app(ApiConfig()), make_app(ApiConfig())
    secrets = [(await store.keys.create(Role.TENANT, tenant_id=name))[1] for name in ("ada", "ada", "eve")]
    async with AsyncExitStack() as stack:

        async def browser(secret: str, at: FastAPI = app) -> httpx.AsyncClient:
            http = httpx.AsyncClient(transport=httpx.ASGITransport(at), base_url="http://api.test")
            await stack.enter_async_context(http)
            response = await http.post("/v1/session", json={"key": secret})
            http.headers.update(ORIGIN | {"x-csrf-token": response.json()["csrf_token"]})
            return http

        async def is_signed_in(http: httpx.AsyncClient) -> bool:
            return (await http.get("/v1/jobs")).status_code == 200

        own = [await browser(secrets[0]) for _ in range(2)]
        away = await browser(secrets[0], other)
        others = [await browser(secret) for secret in secrets[1:]]
        copied = {"cookie": "; ".join(f"{each.name}={each.value}" for each in own[0].cookies.jar)}
        assert [await is_signed_in(each) for each in (*own, away, *others)] == [True] * 5
        forged = await own[1].delete("/v1/session", params={"everywhere": True}, headers={"x-csrf-token": ""})
        assert forged.status_code == 403
        assert (await own[1].delete("/v1/session", params={"everywhere": True})).status_code == 204
        assert [await is_signed_in(each) for each in (*own, *others)] == [False, False, True, True]
        assert (await others[0].get("/v1/jobs", headers=copied)).status_code == 401, "a stolen cookie"
        other.state.services.sessions._known_marks.clear()  # after some seconds
        assert not await is_signed_in(away)
        again = await browser(secrets[0])
        assert await is_signed_in(again)
        assert (await again.delete("/v1/session")).status_code == 204
        assert await is_signed_in(await browser(secrets[0]))


async def test_the_cookie_is_out_of_reach_and_does_not_contain_the_key(
    make_app: MakeApp, store: JobStore
) -> None:
    key, secret = await store.keys.create(Role.OPERATOR)
    app = make_app(ApiConfig(session_seconds=60))
    app.root_path = "/pictures"
    names, flags = {}, {}
    for scheme in ("http", "https"):
        transport = httpx.ASGITransport(app, root_path="/pictures")
        async with httpx.AsyncClient(transport=transport, base_url=f"{scheme}://api.test") as http:
            response = await http.post("/v1/session", json={"key": secret})
            value, *parts = response.headers["set-cookie"].split("; ")
            names[scheme], flags[scheme] = value.partition("=")[0], set(parts)
            assert key.id in value
            assert split_secret(secret)[1] not in value
            assert response.headers["cache-control"] == "no-store"
    assert flags["http"] == {"HttpOnly", "Max-Age=60", "Path=/pictures", "SameSite=strict"}
    assert flags["https"] == flags["http"] | {"Secure"}
    assert names == {"http": "diffuserve_session", "https": "__Secure-diffuserve_session"}


@pytest.mark.parametrize("config", [ApiConfig(public_api_url="https://pictures.test")])
async def test_a_public_url_makes_the_cookie_secure_and_is_an_own_origin(sign_in: SignIn) -> None:
    http = await sign_in()
    [cookie] = http.cookies.jar
    assert (cookie.name, cookie.secure, cookie.path) == ("__Host-diffuserve_session", True, "/")

    async def submitted_with(name: str) -> int:
        headers = {"cookie": f"{name}={cookie.value}", "origin": "https://pictures.test"}
        return (await http.post("/v1/jobs", json=CAT, headers=headers)).status_code

    assert await submitted_with(cookie.name) == 202
    assert await submitted_with("diffuserve_session") == 401, "which others on the host may set, without TLS"


@pytest.mark.parametrize(
    "headers",
    [
        {"x-csrf-token": ""},
        {"x-csrf-token": "0" * 64},
        {"origin": "https://evil.test"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://api.test:81"},
    ],
)
async def test_a_change_by_cookie_must_come_from_the_page(sign_in: SignIn, headers: dict[str, str]) -> None:
    http = await sign_in()
    for method, path in (("POST", "/v1/jobs"), ("DELETE", "/v1/session"), ("POST", "/v1/files")):
        response = await http.request(method, path, json=CAT, headers=headers)
        assert response.status_code == 403, f"{method} {path}"
    assert (await http.get("/v1/jobs", headers=ORIGIN)).json()["data"] == []


async def test_a_change_by_cookie_needs_an_origin_at_all(sign_in: SignIn) -> None:
    http = await sign_in()
    del http.headers["origin"]
    assert (await http.post("/v1/jobs", json=CAT)).status_code == 403
    own = {"sec-fetch-site": "same-origin"}
    assert (await http.post("/v1/jobs", json=CAT, headers=own)).status_code == 202


async def test_the_token_of_another_session_is_refused(sign_in: SignIn) -> None:
    http, other = await sign_in(), await sign_in()
    foreign = {"x-csrf-token": other.headers["x-csrf-token"]}
    assert (await http.post("/v1/jobs", json=CAT, headers=foreign)).status_code == 403


@pytest.mark.parametrize("config", [ApiConfig(allowed_origins=("https://app.test",))])
async def test_pages_of_other_sites_never_use_the_cookie(sign_in: SignIn) -> None:
    http = await sign_in()
    for headers in ({"origin": "https://app.test"}, {"sec-fetch-site": "same-site"}):
        response = await http.get("/v1/jobs", headers=headers)
        assert response.status_code == 403
        assert "access-control-allow-credentials" not in response.headers
    response = await http.post("/v1/session", json={"key": "any"}, headers={"origin": "https://app.test"})
    assert response.status_code == 403, "nobody is signed in as somebody else by another site"


async def test_a_key_in_a_header_goes_before_the_cookie(sign_in: SignIn) -> None:
    http = await sign_in()
    response = await http.get("/v1/jobs", headers={"authorization": "Bearer nonsense"})
    assert response.status_code == 401


@pytest.mark.parametrize("role", [Role.WORKER, Role.MONITOR])
async def test_keys_of_programs_open_no_session(sign_in: SignIn, role: Role) -> None:
    http = await sign_in(role)
    assert (await http.get("/v1/session")).json()["role"] is None
    assert not http.cookies.jar


@pytest.mark.parametrize("spoiled", ["", "a.b.c.d", "x" * 5_000, "key.9999999999.nonce.0", "é.1.2.é"])
async def test_a_cookie_that_the_server_did_not_sign_is_none(sign_in: SignIn, spoiled: str) -> None:
    http = await sign_in()
    http.cookies.clear()
    cookie = {"cookie": f"diffuserve_session={spoiled}".encode()}
    assert (await http.get("/v1/session", headers=cookie)).json()["role"] is None  # type: ignore[arg-type]
    response = await http.get("/v1/jobs", headers=cookie)  # type: ignore[arg-type]
    assert response.status_code == 401


async def test_a_lengthened_session_is_refused_and_an_old_one_is_over(
    sign_in: SignIn, monkeypatch: pytest.MonkeyPatch, config: ApiConfig
) -> None:
    http = await sign_in()
    (cookie,) = http.cookies.jar
    key_id, expires, rest = (cookie.value or "").split(".", 2)
    longer = {"cookie": f"{cookie.name}={key_id}.{int(expires) + 1}.{rest}"}
    http.cookies.clear()
    assert (await http.get("/v1/jobs", headers=longer)).status_code == 401
    monkeypatch.setattr("diffuserve.api.auth.sessions.time.time", lambda: float(expires))
    old = {"cookie": f"{cookie.name}={cookie.value}"}
    assert (await http.get("/v1/jobs", headers=old)).status_code == 401


@pytest.mark.parametrize("key", ["x" * 201, "\ud800", 7, None])
async def test_what_can_be_no_key_is_refused_as_a_value(sign_in: SignIn, key: object) -> None:
    response = await (await sign_in()).post("/v1/session", content=json.dumps({"key": key}), headers=JSON)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_params")


async def test_failed_attempts_of_an_address_are_limited_and_no_others(
    sign_in: SignIn, store: JobStore
) -> None:
    http = await sign_in()
    _, key = await store.keys.create(Role.TENANT, tenant_id="bob")
    statuses = []
    for _ in range(20):
        response = await http.post("/v1/session", json={"key": "dfs_0_wrong"})
        statuses.append(response.status_code)
        assert "retry-after" in response.headers or response.status_code == 401
    assert statuses[0] == 401
    assert 429 in statuses
    assert (await http.post("/v1/session", json={"key": key})).status_code == 200


@pytest.mark.usefixtures("worker")
async def test_an_open_server_needs_no_session(http: httpx.AsyncClient) -> None:
    session = (await http.get("/v1/session")).json()
    assert (session["is_open"], session["role"], session["csrf_token"]) == (True, "operator", None)
    response = await http.post("/v1/session", json={"key": "anything"})
    assert "set-cookie" not in response.headers
    stale = {"cookie": "diffuserve_session=a.b.c.d"}
    assert (await http.post("/v1/jobs", json=CAT, headers=stale)).status_code == 202


@pytest.mark.parametrize("name", ["diffuserve_session", "other"])
@pytest.mark.parametrize("escaped", ["\\a", '\\"'])
async def test_no_cookie_takes_long_to_read(http: httpx.AsyncClient, name: str, escaped: str) -> None:
    """Send cookies as long as a head may be: to resolve what is escaped in one would take seconds."""
    cookie = {"cookie": f'{name}="{escaped * 30_000}"'}
    started_at = time.process_time()
    assert (await http.get("/v1/session", headers=cookie)).status_code == 200
    assert time.process_time() - started_at < 0.5


async def test_cookies_of_others_on_this_host_leave_a_session_its_own(sign_in: SignIn) -> None:
    http = await sign_in()
    [own] = http.cookies.jar
    http.cookies.clear()
    cookie = {"cookie": f'a="\\"b"; {own.name}={own.value};c'}
    assert (await http.get("/v1/session", headers=cookie)).json()["role"] == "tenant"


async def test_an_open_server_stays_closed_to_other_sites_whatever_cookie(http: httpx.AsyncClient) -> None:
    cookie = {"cookie": "diffuserve_session=a.b.c.d", "x-csrf-token": "0"}
    for header in ({"host": "evil.test"}, {"origin": "https://evil.test", "host": "localhost"}):
        response = await http.post("/v1/jobs", json=CAT, headers=cookie | header)
        assert response.status_code == 403


async def test_a_revoked_key_ends_its_sessions_and_their_streams(
    make_app: MakeApp, store: JobStore, monkeypatch: pytest.MonkeyPatch, config: ApiConfig
) -> None:
    monkeypatch.setattr(revocation, "_PERIOD_SECONDS", 0.02)
    monkeypatch.setattr(access, "_KEY_SECONDS", 0.02)
    app = make_app(config)
    await offer_model(app, store)
    key, secret = await store.keys.create(Role.TENANT, tenant_id="ada")
    with closing(listen("127.0.0.1", 0)) as listener:
        url = address_of(listener)
        async with (
            serving(app, listener),
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=HANG_SECONDS) as http,
        ):
            token = (await http.post("/v1/session", json={"key": secret})).json()["csrf_token"]
            job = (
                await http.post("/v1/jobs", json=CAT, headers={"x-csrf-token": token, "origin": url})
            ).json()
            started = asyncio.Event()
            stream = asyncio.create_task(_read(http, f"/v1/jobs/{job['id']}/events", started))
            await asyncio.wait_for(started.wait(), HANG_SECONDS)
            await _check_websockets(http, url, job["id"])
            await store.keys.revoke(key.id)
            await asyncio.wait_for(stream, HANG_SECONDS)

            async def is_signed_out() -> bool:
                return (await http.get("/v1/jobs")).status_code == 401

            await eventually(is_signed_out)
            assert (await http.get("/v1/session")).json()["role"] is None


async def _read(http: httpx.AsyncClient, path: str, started: asyncio.Event) -> None:
    async with http.stream("GET", path) as response:
        async for _ in response.aiter_bytes():
            started.set()


async def _check_websockets(http: httpx.AsyncClient, url: str, job_id: str) -> None:
    """Assert that a WebSocket opens by cookie for the server's own page alone."""
    cookie = "; ".join(f"{cookie.name}={cookie.value}" for cookie in http.cookies.jar)
    address = f"{url.replace('http', 'ws')}/v1/jobs/{job_id}/ws"
    headers = {"cookie": cookie}
    async with websockets.connect(address, additional_headers=headers | {"origin": url}) as socket:
        assert await socket.recv()
    for foreign in ({}, {"origin": "https://evil.test"}):
        with pytest.raises((websockets.InvalidStatus, websockets.ConnectionClosedError)):
            async with websockets.connect(address, additional_headers=headers | foreign) as socket:
                await socket.recv()
