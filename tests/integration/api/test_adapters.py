"""Adapters by name at the door: whose they are, which models take them, and what a job keeps of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from safetensors.numpy import save

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.tenant import Plan, Role
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.modelstore.adapters.adapter_store import AdapterStore
from diffuserve.modelstore.adapters.stored_adapters import StoredAdapters
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.storage.local import LocalArtifactStore
from support.hand_worker import HAND_SPEC, HandWorker

FLUX = replace(HAND_SPEC, name="painter", family="flux", max_adapters=4)
WAN = replace(HAND_SPEC, name="filmer", family="wan", max_adapters=4)
PLAIN = replace(HAND_SPEC, name="plain", family="flux")
OCTETS = {"content-type": "application/octet-stream"}


def adapter(seed: int = 0, rank: int = 2) -> bytes:
    """Return an adapter for FLUX.1, as a file."""
    source, layer = np.random.default_rng(seed), "transformer.single_transformer_blocks.0.proj_mlp"
    down, up = source.standard_normal((rank, 8)), source.standard_normal((8, rank))
    matrices = {f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up}
    file: bytes = save({name: matrix.astype(np.float32) for name, matrix in matrices.items()})
    return file


@pytest.fixture
def store_config() -> StoreConfig:
    small = Plan(name="small", max_adapters=2, max_adapters_bytes=6_000)
    return StoreConfig(plans={"small": small}, default_plan="small")


@pytest.fixture
def adapters(tmp_path: Path) -> StoredAdapters:
    return StoredAdapters((tmp_path / "adapters").as_uri())


@pytest.fixture
def config() -> ApiConfig:
    return ApiConfig(
        adapter_uploads=True, own_adapters=("local",), bundled_adapters={"painter": ("shipped",)}
    )


@pytest.fixture
def app(
    store: JobStore,
    artifacts: LocalArtifactStore,
    bus: MemoryEventBus,
    config: ApiConfig,
    adapters: StoredAdapters,
) -> FastAPI:
    return create_app(store, artifacts, bus, config, adapters=adapters)


@pytest.fixture
async def keys(store: JobStore, http: httpx.AsyncClient) -> dict[str, dict[str, str]]:
    """Headers of two tenants and an operator; a worker of three models is there already."""
    roles = {"ada": Role.TENANT, "bob": Role.TENANT, "operator": Role.OPERATOR, "worker": Role.WORKER}
    keys = dict[str, dict[str, str]]()
    for who, role in roles.items():
        _, secret = await store.keys.create(role, tenant_id=who if role is Role.TENANT else None)
        keys[who] = {"authorization": f"Bearer {secret}"}
    http.headers.update(keys["worker"])
    worker = await HandWorker.register(http, [FLUX, WAN, PLAIN])
    await worker.beat("ready", own_adapters=["own"])
    return keys


async def upload(
    http: httpx.AsyncClient, key: dict[str, str], name: str = "ink", content: bytes | None = None
) -> httpx.Response:
    body = adapter() if content is None else content
    return await http.post("/v1/adapters", params={"name": name}, content=body, headers={**key, **OCTETS})


async def stored(http: httpx.AsyncClient, key: dict[str, str]) -> list[dict[str, Any]]:
    """Return what the store has for a caller."""
    listed = (await http.get("/v1/adapters", headers=key)).json()["data"]
    return [each for each in listed if each["origin"] == "store"]


async def submit(http: httpx.AsyncClient, key: dict[str, str], *names: str, model: str = "painter") -> Any:
    asked = {"prompt": "a cat", "adapters": [{"name": name, "weight": 0.5} for name in names]}
    return await http.post("/v1/jobs", json={"model": model, "input": asked}, headers=key)


async def test_an_adapter_is_its_tenants_alone(
    http: httpx.AsyncClient, keys: dict[str, dict[str, str]], store: JobStore
) -> None:
    uploaded = await upload(http, keys["ada"])
    assert uploaded.status_code == 201, uploaded.text
    told = uploaded.json()
    assert (told["models"], told["rank"], told["num_layers"]) == (["painter"], 2, 1)
    assert (told["is_public"], told["families"]) == (False, ["flux"])
    job = (await submit(http, keys["ada"], "ink")).json()
    assert job["input"]["adapters"] == [{"name": "ink", "weight": 0.5}]
    kept = (await store.jobs.get(job["id"])).input["adapters"]
    assert kept == [{"name": "ink", "weight": 0.5, "digest": told["digest"]}]
    refused = await submit(http, keys["bob"], "ink")
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "input.adapters.0.name"
    for call in (http.get, http.delete):
        assert (await call("/v1/adapters/ink", headers=keys["bob"])).status_code == 404
    assert await stored(http, keys["bob"]) == []
    assert await stored(http, keys["ada"]) == [told]


async def test_own_names_go_before_public_ones(
    http: httpx.AsyncClient, keys: dict[str, dict[str, str]], store: JobStore
) -> None:
    public = (await upload(http, keys["operator"], content=adapter(1))).json()
    own = (await upload(http, keys["ada"], content=adapter(2))).json()
    assert public["is_public"]
    digests = {
        who: (await store.jobs.get((await submit(http, keys[who], "ink")).json()["id"])).input["adapters"][0][
            "digest"
        ]
        for who in ("ada", "bob", "operator")
    }
    assert digests == {"ada": own["digest"], "bob": public["digest"], "operator": public["digest"]}
    models = (await http.get("/v1/models", headers=keys["bob"])).json()["data"]
    assert {model["id"]: model["adapters"] for model in models} == {
        "painter": ["ink", "local", "own", "shipped"],
        "filmer": ["local", "own"],
        "plain": [],
    }


async def test_a_queued_job_keeps_what_it_was_accepted_with(
    http: httpx.AsyncClient,
    keys: dict[str, dict[str, str]],
    store: JobStore,
    tmp_path: Path,
) -> None:
    first = (await upload(http, keys["ada"])).json()
    job = (await submit(http, keys["ada"], "ink")).json()
    assert (await upload(http, keys["ada"], content=adapter(1))).status_code == 201
    assert (await http.delete("/v1/adapters/ink", headers=keys["ada"])).json()["deleted"]
    assert (await submit(http, keys["ada"], "ink")).status_code == 422
    digest = (await store.jobs.get(job["id"])).input["adapters"][0]["digest"]
    assert digest == first["digest"]
    place = (tmp_path / "adapters").as_uri()
    worker = AdapterStore(ModelStoreConfig(adapter_store=place, model_cache=tmp_path / "cache"))
    assert worker.fetch(digest).read_bytes() == adapter()


async def test_a_worker_knows_names_of_its_own(
    http: httpx.AsyncClient, keys: dict[str, dict[str, str]], store: JobStore
) -> None:
    for name in ("local", "own", "shipped"):
        job = (await submit(http, keys["ada"], name)).json()
        assert (await store.jobs.get(job["id"])).input["adapters"] == [{"name": name, "weight": 0.5}]
    assert (await submit(http, keys["ada"], "shipped", model="filmer")).status_code == 422


async def test_each_adapter_says_where_it_comes_from(
    http: httpx.AsyncClient, keys: dict[str, dict[str, str]]
) -> None:
    await upload(http, keys["ada"])
    await upload(http, keys["bob"], "own")
    listed = (await http.get("/v1/adapters", headers=keys["ada"])).json()["data"]
    assert [(each["name"], each["origin"], each["models"], each["is_public"]) for each in listed] == [
        ("ink", "store", ["painter"], False),
        ("local", "worker", ["filmer", "painter"], True),
        ("own", "worker", ["filmer", "painter"], True),
        ("shipped", "model", ["painter"], True),
    ]
    one = (await http.get("/v1/adapters/shipped", headers=keys["ada"])).json()
    assert (one, one["digest"], one["families"]) == (listed[3], None, ["flux"])
    own = (await http.get("/v1/adapters/own", headers=keys["bob"])).json()
    assert (own["origin"], own["is_public"]) == ("store", False)  # the store's hides the worker's


@pytest.mark.parametrize(
    ("names", "model", "told"),
    [
        (("inc",), "painter", "there is no such adapter; did you mean 'ink'?"),
        (("local", "ink"), "filmer", "was made for models of the family flux; filmer is of the family wan"),
        (("ink",), "plain", "takes no adapters"),
        (("../ink",), "painter", "must be a name"),
    ],
)
async def test_what_a_model_cannot_take_is_refused_at_the_door(
    http: httpx.AsyncClient, keys: dict[str, dict[str, str]], names: tuple[str, ...], model: str, told: str
) -> None:
    await upload(http, keys["ada"])
    refused = await submit(http, keys["ada"], *names, model=model)
    assert refused.status_code == 422
    assert told in refused.json()["errors"][0]["message"]


async def test_an_unknown_adapter_is_refused_where_it_is_named(
    http: httpx.AsyncClient, keys: dict[str, dict[str, str]]
) -> None:
    await upload(http, keys["ada"])
    asked = {"prompt": "a cat <lora:inc:1>", "adapters": [{"name": "ink"}]}
    refused = await http.post("/v1/jobs", json={"model": "painter", "input": asked}, headers=keys["ada"])
    [error] = refused.json()["errors"]
    assert error["field"] == "input.prompt"
    assert "input.prompt='<lora:inc>': there is no such adapter" in refused.json()["detail"]


async def test_nobody_names_a_digest(http: httpx.AsyncClient, keys: dict[str, dict[str, str]]) -> None:
    use = {"name": "local", "digest": "0" * 64}
    asked = {"model": "painter", "prompt": "a cat", "adapters": [use]}
    doors = {
        "/v1/jobs": {"model": "painter", "input": {"prompt": "a cat", "adapters": [use]}},
        "/generate": asked,
        "/v1/images/generations": asked,
        "/v1/batches": {"model": "painter", "items": [item(1, {"prompt": "a cat", "adapters": [use]})]},
    }
    for door, body in doors.items():
        refused = await http.post(door, json=body, headers=keys["ada"])
        assert refused.status_code in (400, 422), door
        assert "digest" in refused.text


def item(number: int, values: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": f"{number}", "input": values}


async def test_every_door_resolves_names(
    http: httpx.AsyncClient, keys: dict[str, dict[str, str]], store: JobStore
) -> None:
    digest = (await upload(http, keys["ada"])).json()["digest"]
    asked = {"prompt": "a cat", "adapters": [{"name": "ink"}]}
    flat = await http.post("/generate", json={"model": "painter", **asked}, headers=keys["ada"])
    assert flat.status_code == 202
    batch = {"model": "painter", "items": [item(1, asked), item(2, {"prompt": "a dog"})]}
    accepted = await http.post("/v1/batches", json=batch, headers=keys["ada"])
    assert accepted.status_code == 202, accepted.text
    jobs = await store.jobs.list_jobs(tenant_id="ada", limit=10)
    found = sorted(str(job.input.get("adapters")) for job in jobs)
    assert found == ["None", *[str([{"name": "ink", "weight": 1.0, "digest": digest}])] * 2]
    batch["items"] = [item(1, asked), item(2, {**asked, "adapters": [{"name": "inc"}]})]
    refused = await http.post("/v1/batches", json=batch, headers=keys["ada"])
    assert refused.json()["errors"][0]["field"] == "items.1.input.adapters.0.name"
    image = {"model": "painter", "prompt": "a cat", "adapters": [{"name": "inc"}]}
    openai = await http.post("/v1/images/generations", json=image, headers=keys["ada"])
    assert (openai.status_code, openai.json()["error"]["param"]) == (400, "adapters.0.name")


async def test_a_plan_bounds_number_and_bytes(
    http: httpx.AsyncClient, keys: dict[str, dict[str, str]]
) -> None:
    for name in ("a", "b", "b"):
        assert (await upload(http, keys["ada"], name)).status_code == 201
    full = await upload(http, keys["ada"], "c")
    assert (full.status_code, full.json()["code"]) == (429, "adapters_full")
    await http.delete("/v1/adapters/a", headers=keys["ada"])
    large = await upload(http, keys["ada"], "c", adapter(rank=85))
    assert (large.status_code, large.json()["code"]) == (429, "adapters_full")
    assert (await upload(http, keys["ada"], "c", bytes(7_000))).status_code == 413
    assert (await upload(http, keys["ada"], "c")).status_code == 201
    assert (await upload(http, keys["bob"], "c")).status_code == 201
    for name in ("a", "b", "c"):
        assert (await upload(http, keys["operator"], name)).status_code == 201


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\x08", "not a safetensors file"),
        (b"", "not a safetensors file"),
        (save({"surprise": np.ones((2, 2), np.float32)}), "surprise"),
    ],
)
async def test_a_file_that_is_no_adapter_is_refused_without_a_trace(
    http: httpx.AsyncClient, keys: dict[str, dict[str, str]], content: bytes, told: str
) -> None:
    refused = await upload(http, keys["ada"], content=content)
    assert refused.status_code == 422
    assert told in refused.text
    assert "/tmp" not in refused.text
    assert await stored(http, keys["ada"]) == []
    assert (await upload(http, keys["ada"], "../x")).status_code == 422


async def test_a_server_takes_adapters_only_where_its_operator_allows_it(
    store: JobStore,
    artifacts: LocalArtifactStore,
    bus: MemoryEventBus,
    adapters: StoredAdapters,
    keys: dict[str, dict[str, str]],
) -> None:
    app = create_app(store, artifacts, bus, ApiConfig(), adapters=adapters)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.test") as http:
        refused = await upload(http, keys["ada"])
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert (await upload(http, keys["operator"])).status_code == 201
        assert (await http.delete("/v1/adapters/ink", headers=keys["ada"])).status_code == 403


async def test_a_store_that_is_down_refuses_what_needs_it_alone(
    http: httpx.AsyncClient,
    keys: dict[str, dict[str, str]],
    adapters: StoredAdapters,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise ServerUnavailable("the adapter store is unavailable")

    for name in ("find", "entries"):
        monkeypatch.setattr(adapters, name, fail)
    assert (await submit(http, keys["ada"], "ink")).status_code == 503
    assert (await submit(http, keys["ada"])).status_code == 202
    models = (await http.get("/v1/models", headers=keys["ada"])).json()["data"]
    assert models[0]["adapters"] == ["local", "own"]
