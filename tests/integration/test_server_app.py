"""The server as an ASGI application inside a program: real agents, and engines that generate nothing."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import psutil
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI
from starlette.types import ASGIApp

from diffuserve.domain.errors import InvalidParams, ServerUnavailable
from diffuserve.domain.tenant import Role
from diffuserve.integrations.asgi import ServerApp
from diffuserve.settings import Settings
from diffuserve.wiring.control import open_store
from diffuserve.wiring.data_folder import servers_on
from support.plane import NULL_ENGINE
from support.waiting import eventually

DRAWS = (*NULL_ENGINE, "--files", "1")
NO_KEY = "sesame"
QUICK = {"prompt_filter": "policy", "prompt_filter_processes": 0, "drain_seconds": 0.1, "zygote": False}


@asynccontextmanager
async def client_of(app: ASGIApp, key: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose requests go to the application without a port."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


async def submitted(client: httpx.AsyncClient) -> str:
    response = await client.post("/v1/jobs", json={"input": {"prompt": "a star"}})
    return str(response.json()["id"])


async def ended(client: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    """Return a job once it has ended, as its events have then."""
    await client.get(f"/v1/jobs/{job_id}/events")
    job: dict[str, Any] = (await client.get(f"/v1/jobs/{job_id}")).json()
    return job


def server_app(*engine: str, **settings: Any) -> ServerApp:
    return ServerApp(engine_command=engine or DRAWS, **{**QUICK, **settings})


async def test_both_families_of_routes_draw_and_no_folder_is_left() -> None:
    app = server_app(no_auth=True)
    async with app.running(), client_of(app) as client:
        folder = Path((await client.get("/v1/workers")).json()["data"][0]["name"].rpartition(":")[2])
        assert folder.is_dir()
        job = await ended(client, await submitted(client))
        assert job["status"] == "succeeded"
        assert (await client.get(job["result"]["artifacts"][0]["url"])).content.startswith(b"\x89PNG")
        direct = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
        openai = AsyncOpenAI(api_key="any", base_url="http://localhost/v1", http_client=direct)
        images = (await openai.images.generate(prompt="a star")).data
        assert images is not None
        assert images[0].b64_json
        refused = await client.post("/v1/images/generations", json={"prompt": "a star", "size": "x"})
        assert refused.json()["error"]["param"] == "size"
        assert await app.workers_needed() > 0, "the last minutes' work counts"
        app.check_health()
    assert not folder.exists()
    with pytest.raises(ServerUnavailable, match="has not started"):
        app.check_health()


async def test_it_is_a_part_of_another_application() -> None:
    inner = server_app(no_auth=True, public_api_url="http://localhost/images")
    outer = FastAPI(lifespan=lambda _app: inner.running())
    outer.mount("/images", inner)
    async with outer.router.lifespan_context(outer), client_of(outer) as client:
        job_id = (await client.post("/images/v1/jobs", json={"input": {"prompt": "a star"}})).json()["id"]
        await client.get(f"/images/v1/jobs/{job_id}/events")
        job = (await client.get(f"/images/v1/jobs/{job_id}")).json()
        assert (await client.get(job["result"]["artifacts"][0]["url"])).content.startswith(b"\x89PNG")


async def test_the_death_of_an_engine_is_not_the_hosts() -> None:
    app = server_app(no_auth=True)
    async with app.running(), client_of(app) as client:
        me = psutil.Process()
        [engine] = [child for child in me.children() if "null_engine" in " ".join(child.cmdline())]
        engine.kill()
        job = await ended(client, await submitted(client))
        assert job["status"] == "succeeded"
    await eventually(lambda: not any("null_engine" in " ".join(c.cmdline()) for c in me.children()))


async def test_a_key_made_elsewhere_opens_it_and_no_other(tmp_path: Path) -> None:
    async with open_store(Settings(data_dir=tmp_path)) as elsewhere:
        _, key = await elsewhere.keys.create(Role.TENANT)
    app = server_app(api_key=key)
    async with app.running():
        async with client_of(app) as stranger:
            assert (await stranger.get("/v1/jobs")).status_code == 401
        async with client_of(app, key) as owner:
            assert (await owner.get("/v1/jobs")).status_code == 200
            assert (await owner.get("/v1/workers")).status_code == 403


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "everyone who reaches the host could use this server"),
        ({"api_key": NO_KEY}, "malformed API key.*`diffuserve keys create` makes one"),
        ({"no_auth": True, "allowed_origins": ("*",)}, "every page that a browser shows"),
    ],
)
async def test_nothing_is_open_by_mistake(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParams, match=message):
        async with server_app(**settings).running():
            pass


async def test_a_folder_keeps_its_jobs_and_has_one_server(tmp_path: Path) -> None:
    slow = server_app(*DRAWS, "--seconds", "60", no_auth=True, data_dir=tmp_path)
    quick = server_app(no_auth=True, data_dir=tmp_path)
    async with slow.running(), client_of(slow) as client:
        kept = await submitted(client)
        with pytest.raises(InvalidParams, match="another server"):
            async with quick.running():
                pass

        async def is_drawn() -> bool:
            return bool((await client.get(f"/v1/jobs/{kept}")).json()["phase"] == "denoise")

        await eventually(is_drawn)
    async with quick.running(), client_of(quick) as client:
        assert (await ended(client, kept))["status"] == "succeeded"


async def test_two_on_one_database_know_each_others_jobs(tmp_path: Path) -> None:
    shared = {"no_auth": True, "database_url": f"sqlite:///{tmp_path}/jobs.db", "data_dir": tmp_path}
    one, other = server_app(*DRAWS, "--seconds", "1", **shared), server_app(**shared)
    async with one.running(), client_of(one) as first:
        held = await submitted(first)
        assert servers_on(tmp_path) == [os.getpid()], "where `diffuserve stop` looks"
        async with other.running(), client_of(other) as second:
            names = {worker["name"] for worker in (await second.get("/v1/workers")).json()["data"]}
            assert len(names) == 2, "else the one that starts would release what the other is drawing"
            assert (await ended(second, held))["attempt"] == 1
            assert await one.workers_needed() == pytest.approx(await other.workers_needed(), rel=0.5)
    assert servers_on(tmp_path) == []


async def test_it_does_not_start_without_its_model() -> None:
    with pytest.raises(ServerUnavailable, match="could not start; see its log"):
        async with server_app(*NULL_ENGINE, "--refuse", "no such model", no_auth=True).running():
            pass
    with pytest.raises(InvalidParams, match="modle"):
        ServerApp(modle="tiny-flux")
