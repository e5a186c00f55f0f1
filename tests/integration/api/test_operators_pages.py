"""Access to the metrics and to the API's own documents."""

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.domain.tenant import Role
from diffuserve.jobs.store import JobStore
from diffuserve.settings import Settings

MakeApp = Callable[[ApiConfig], FastAPI]
Statuses = Callable[..., Awaitable[list[int]]]
DOCUMENTS = ("/docs", "/docs/assets/swagger-ui-bundle.js", "/openapi.json")


@pytest.fixture
def statuses(make_app: MakeApp) -> Statuses:
    """Return a function that returns the status of a page for a client with this key."""

    async def statuses(config: ApiConfig, secret: str | None, *paths: str) -> list[int]:
        headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
        transport = httpx.ASGITransport(make_app(config))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://api.test", headers=headers
        ) as http:
            return [(await http.get(path)).status_code for path in paths]

    return statuses


async def test_metrics_need_a_key_of_a_monitor_or_an_operator(statuses: Statuses, store: JobStore) -> None:
    secrets = {role: (await store.keys.create(role, tenant_id=tenant_of(role)))[1] for role in Role}
    for role, status in (("monitor", 200), ("operator", 200), ("tenant", 403), ("worker", 403)):
        assert await statuses(ApiConfig(), secrets[Role(role)], "/metrics") == [status]
    assert await statuses(ApiConfig(), None, "/metrics") == [401]
    assert await statuses(ApiConfig(public_metrics=True), None, "/metrics") == [200]
    others = ("/v1/jobs", "/v1/workers", "/v1/webhooks/secret")
    assert await statuses(ApiConfig(), secrets[Role.MONITOR], *others) == [403] * 3


def tenant_of(role: Role) -> str | None:
    return "ada" if role is Role.TENANT else None


async def test_an_open_server_shows_its_metrics(statuses: Statuses) -> None:
    assert await statuses(ApiConfig(), None, "/metrics") == [200]


async def test_documents_can_be_switched_off(statuses: Statuses) -> None:
    assert await statuses(ApiConfig(), None, *DOCUMENTS) == [200] * 3
    assert await statuses(ApiConfig(api_docs=False), None, *DOCUMENTS) == [404] * 3


async def test_the_page_of_the_documents_loads_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    page = await http.get("/docs")
    assert "//" not in page.text
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assets = [link for link in linked if not link.startswith("data:")]
    assert len(assets) == 2
    for asset in assets:
        response = await http.get(f"/{asset}")
        assert response.status_code == 200
        assert len(response.content) > 100_000
        again = await http.get(f"/{asset}", headers={"if-none-match": response.headers["etag"]})
        assert again.status_code == 304
    policy = page.headers["content-security-policy"]
    assert "http" not in policy
    assert "default-src 'none'" in policy
    [script] = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy


async def test_redoc_leads_to_the_documents(http: httpx.AsyncClient) -> None:
    response = await http.get("/redoc", follow_redirects=True)
    assert (response.status_code, response.url.path) == (200, "/docs")


@pytest.mark.parametrize(
    ("given", "is_shown"),
    [
        ({}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "api_docs": True}, True),
        ({"api_docs": False}, False),
    ],
    ids=str,
)
def test_documents_are_shown_on_loopback_by_default(given: dict[str, object], is_shown: bool) -> None:
    assert Settings(**given).api_config(auth=True).api_docs is is_shown  # type: ignore[arg-type]
