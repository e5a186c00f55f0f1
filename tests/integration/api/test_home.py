"""The root of the server tells people and programs what it is."""

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.domain.tenant import Role
from diffuserve.jobs.store import JobStore
from support.hand_worker import HAND_SPEC, HandWorker

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
MakeApp = Callable[[ApiConfig], FastAPI]


def client_of(app: FastAPI, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000", headers=headers
    )


async def test_a_program_learns_what_the_server_is(make_app: MakeApp) -> None:
    app = make_app(ApiConfig(version="1.2.3", commit="abc"))
    async with client_of(app) as http:
        before: dict[str, Any] = (await http.get("/")).json()
        assert (before["name"], before["version"], before["api_version"]) == ("diffuserve", "1.2.3", "v1")
        assert (before["status"], before["requires_key"], before["models"]) == ("not_ready", False, [])
        assert "no worker has registered yet" in before["reason"]
        assert before["expands_prompts"] is False
        assert before["urls"]["jobs"] == "http://127.0.0.1:8000/v1/jobs"
        assert before["urls"]["edits"] == "http://127.0.0.1:8000/v1/images/edits"
        assert before["urls"]["docs"] == "http://127.0.0.1:8000/docs"
        version = {"version": "1.2.3", "api_version": "v1", "commit": "abc"}
        assert (await http.get("/version")).json() == version
    async with client_of(make_app(ApiConfig(api_docs=False))) as http:
        await HandWorker.register(http)
        after = (await http.get("/")).json()
        assert (after["status"], after["reason"], after["models"]) == ("ready", None, ["hand"])
        assert (after["urls"]["docs"], after["urls"]["openapi"]) == (None, None)


async def test_a_person_sees_a_page_that_needs_nothing_from_elsewhere(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    page = await http.get("/", headers={"accept": BROWSER})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for told in ("Ready.", "<code>hand</code>", "64×64", "curl http://api.test/v1/jobs", "diffuserve submit"):
        assert told in page.text
    assert "http-equiv" not in page.text
    assert "KEY" not in page.text
    assert 'href="http://api.test/docs"' in page.text
    assert re.findall(r"src=|<script|@import|url\(", page.text) == []
    links = re.findall(r'href="([^"]+)"', page.text)
    assert {(await http.get(link)).status_code for link in links} == {200}
    [style] = re.findall(r"<style>(.*?)</style>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = page.headers["content-security-policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "accept" in page.headers["vary"]


async def test_the_page_says_that_no_worker_is_ready_and_looks_again(http: httpx.AsyncClient) -> None:
    page = (await http.get("/", headers={"accept": BROWSER})).text
    assert "Jobs wait: no worker has registered yet; <code>diffuserve worker</code>" in page
    assert 'http-equiv="refresh"' in page


async def test_with_keys_only_their_owners_see_the_models(
    make_app: MakeApp, store: JobStore, worker: HandWorker
) -> None:
    secrets = [(await store.keys.create(role, tenant_id=None))[1] for role in (Role.OPERATOR, Role.MONITOR)]
    app = make_app(ApiConfig(api_docs=False))
    for secret, models in ((secrets[0], ["hand"]), (secrets[1], None), ("wrong", None)):
        async with client_of(app, authorization=f"Bearer {secret}") as http:
            told = (await http.get("/")).json()
            assert (told["models"], told["requires_key"], told["status"]) == (models, True, "ready")
    async with client_of(app, accept=BROWSER) as http:
        page = (await http.get("/")).text
    assert "hand" not in page
    assert "authorization: Bearer KEY" in page
    assert "--key KEY" in page
    assert "/docs" not in page


async def test_what_a_client_or_a_worker_has_named_is_escaped(make_app: MakeApp, store: JobStore) -> None:
    await store.keys.create(Role.OPERATOR)  # with keys any Host is served
    name = "<script>alert(1)</script>"
    app = make_app(ApiConfig(auth=False, own_hosts=('a"><script>',)))
    async with client_of(app, accept=BROWSER) as http:
        await HandWorker.register(http, [replace(HAND_SPEC, name=name)])
        page = (await http.get("/")).text
        assert "<code>&lt;script&gt;alert(1)&lt;/script&gt;</code>" in page
    async with client_of(
        make_app(ApiConfig(public_api_url='https://a.test/"><script>')), accept=BROWSER
    ) as http:
        assert "<script" not in (await http.get("/")).text


@pytest.mark.parametrize(
    ("accept", "is_page"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("TEXT/HTML; q=0.9, application/json; q=0.8", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("application/json, text/html", False),
        ("text/html;q=0.2, application/json", False),
        ("text/html;q=x", False),
        ("text/html;q=0", False),
    ],
)
async def test_the_accept_header_chooses(http: httpx.AsyncClient, accept: str, is_page: bool) -> None:
    response = await http.get("/", headers={"accept": accept})
    assert response.headers["content-type"].startswith("text/html") is is_page
