"""A server without keys serves this machine's programs and its own pages, but no page of another site."""

import json
from collections.abc import AsyncGenerator, Callable

import httpx
import pytest
import websockets
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.domain.tenant import Role
from diffuserve.jobs.store import JobStore
from support.hand_worker import HandWorker

CAT = {"input": {"prompt": "a cat"}}
ITEMS = {"items": [{"custom_id": "a", "input": {"prompt": "a cat"}}]}
SAFE = ("get", "head", "options")
FOREIGN = (
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://api.test:3000"},
    {"origin": "http://[broken"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
)
FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None)


def paths_of(app: FastAPI) -> list[tuple[str, str]]:
    """Return method and path of every documented operation, with an id in place of each parameter."""
    return [
        (method, path.replace("{lease_token}", "1").replace("{", "").replace("}", ""))
        for path, methods in app.openapi()["paths"].items()
        for method in methods
    ]


def json_paths_of(app: FastAPI) -> list[tuple[str, str]]:
    """Return method and path of every operation whose body is JSON alone."""
    return [
        (method, path)
        for path, methods in app.openapi()["paths"].items()
        for method, operation in methods.items()
        if "application/json" in (kinds := operation.get("requestBody", {}).get("content", {}))
        and "multipart/form-data" not in kinds
    ]


@pytest.fixture
async def closed(app: FastAPI, store: JobStore) -> AsyncGenerator[httpx.AsyncClient]:
    """Call a server that requires keys, with an operator's."""
    _, secret = await store.keys.create(Role.OPERATOR)
    headers = {"authorization": f"Bearer {secret}"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test", headers=headers) as http:
        yield http


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[x", "localhost, evil"]
)
async def test_no_route_answers_to_a_foreign_name(http: httpx.AsyncClient, app: FastAPI, host: str) -> None:
    for method, path in [*paths_of(app), ("get", "/docs"), ("get", "/openapi.json")]:
        response = await http.request(method, path, headers={"host": host})
        assert response.status_code == 403, (method, path)
    problem = (await http.get("/v1/jobs", headers={"host": host})).json()
    assert problem["code"] == "forbidden"
    for named in (repr(host), "DIFFUSERVE_ALLOWED_HOSTS", "diffuserve keys create"):
        assert named in problem["detail"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "127.8.8.8", "localhost:9000", "LOCALHOST", "[::1]:8000", "api.test"]
)
async def test_loopback_and_the_address_of_the_request_are_its_own(
    http: httpx.AsyncClient, host: str
) -> None:
    assert (await http.get("/v1/jobs", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("host", ["gpu-box:8000", "images.example.com", "IMAGES.example.com:443"])
async def test_configured_names_are_its_own(make_app: Callable[[ApiConfig], FastAPI], host: str) -> None:
    app = make_app(ApiConfig(own_hosts=("gpu-box",), public_api_url="https://images.example.com/api"))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        assert (await http.get("/v1/jobs", headers={"host": host})).status_code == 200
        own_page = {"host": "127.0.0.1:8000", "origin": "https://images.example.com"}
        assert (await http.post("/v1/webhooks/secret/rotate", headers=own_page)).status_code == 200


@pytest.mark.parametrize("foreign", FOREIGN, ids=str)
async def test_no_changing_route_obeys_the_page_of_another_site(
    http: httpx.AsyncClient, app: FastAPI, foreign: dict[str, str]
) -> None:
    changing = [(method, path) for method, path in paths_of(app) if method not in SAFE]
    assert ("post", "/v1/webhooks/secret/rotate") in changing
    for method, path in changing:
        response = await http.request(method, path, headers=foreign)
        assert response.status_code == 403, (method, path)
    problem = (await http.post("/v1/jobs", json=CAT, headers=foreign)).json()
    assert problem["code"] == "forbidden"
    assert next(iter(foreign.values())) in problem["detail"]


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"origin": "http://api.test"},
        {"origin": "http://api.test", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
    ],
    ids=str,
)
async def test_programs_and_own_pages_may_change_things(http: httpx.AsyncClient, own: dict[str, str]) -> None:
    assert (await http.post("/v1/webhooks/secret/rotate", headers=own)).status_code == 200


async def test_a_foreign_page_may_load_what_it_cannot_read(http: httpx.AsyncClient) -> None:
    """A link to this server works, such as one to an image."""
    headers = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
    assert (await http.get("/v1/jobs", headers=headers)).status_code == 200


async def test_with_keys_neither_name_nor_origin_matter(closed: httpx.AsyncClient) -> None:
    headers = {"host": "images.example.com", "origin": "https://app.example.com"}
    assert (await closed.get("/v1/jobs", headers=headers)).status_code == 200
    assert (await closed.post("/v1/webhooks/secret/rotate", headers=headers)).status_code == 200


@pytest.mark.parametrize("content_type", FORMS)
async def test_routes_that_read_json_read_nothing_else(
    http: httpx.AsyncClient, app: FastAPI, worker: HandWorker, content_type: str | None
) -> None:
    """A page needs no permission of the server to send forms or text, but for JSON."""
    operations = json_paths_of(app)
    assert {("post", "/v1/jobs"), ("post", "/v1/batches"), ("post", "/generate")} <= set(operations)
    headers = {} if content_type is None else {"content-type": content_type}
    for method, path in operations:
        body = json.dumps(ITEMS if path == "/v1/batches" else CAT).encode()
        response = await http.request(method, path, content=body, headers=headers)
        assert response.status_code == 415, (method, path)
        assert "application/json" in response.text
    assert (await http.get("/v1/jobs")).json()["data"] == []
    refused = await http.post("/v1/batches", content=json.dumps(ITEMS).encode(), headers=headers)
    assert refused.json()["code"] == "unsupported_media_type"
    assert "application/jsonl" in refused.json()["detail"]


async def test_with_keys_a_form_is_refused_as_well(closed: httpx.AsyncClient) -> None:
    response = await closed.post("/v1/jobs", content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 415


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=utf-8", "application/x+json"]
)
async def test_json_by_other_spellings_is_json(
    http: httpx.AsyncClient, worker: HandWorker, content_type: str
) -> None:
    for path, body in (("/v1/jobs", CAT), ("/v1/batches", ITEMS)):
        content, headers = json.dumps(body).encode(), {"content-type": content_type}
        assert (await http.post(path, content=content, headers=headers)).status_code == 202, path


async def test_a_websocket_of_another_sites_page_is_refused(
    server: str, http: httpx.AsyncClient, worker: HandWorker
) -> None:
    job_id = (await http.post("/v1/jobs", json=CAT)).json()["id"]
    address = server.removeprefix("http://")
    for path in (f"/v1/jobs/{job_id}/ws", f"/ws/jobs/{job_id}"):
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(f"ws://{address}{path}", additional_headers=headers)
            assert refused.value.response.status_code == 403
            assert json.loads(refused.value.response.body or b"")["code"] == "forbidden"
        own = {"origin": f"http://{address}"}
        async with websockets.connect(f"ws://{address}{path}", additional_headers=own) as socket:
            assert await socket.recv()
