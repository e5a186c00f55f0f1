"""The root of the server tells people and programs what it is."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.domain.tenant import Role
from diffuserve.jobs.store import JobStore
from support.hand_worker import HandWorker

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
        assert after["default_model"] == "hand"
        assert (after["urls"]["docs"], after["urls"]["openapi"]) == (None, None)


async def test_with_keys_only_their_owners_see_the_models(
    make_app: MakeApp, store: JobStore, worker: HandWorker
) -> None:
    secrets = [(await store.keys.create(role, tenant_id=None))[1] for role in (Role.OPERATOR, Role.MONITOR)]
    app = make_app(ApiConfig(api_docs=False))
    cases = ((secrets[0], ["hand"], "hand"), (secrets[1], None, None), ("wrong", None, None))
    for secret, models, default in cases:
        async with client_of(app, authorization=f"Bearer {secret}") as http:
            told = (await http.get("/")).json()
            assert (told["models"], told["requires_key"], told["status"]) == (models, True, "ready")
            assert told["default_model"] == default


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
