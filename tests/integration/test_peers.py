"""Workers that fetch a model of the store with peers, through a control plane."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from diffuserve.agent.agent import WorkerAgent
from diffuserve.modelstore.bucket import open_models
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.manifest import Manifest
from diffuserve.modelstore.piece_hashes import PIECE_BYTES
from diffuserve.modelstore.publishing import push
from diffuserve.protocol.config import EngineProcessConfig
from support.hand_worker import HandWorker
from support.plane import Plane
from support.stored_models import manifest_of, write_files
from support.waiting import eventually

SIZES = {"model_index.json": 100, "vae/a.safetensors": 5 * PIECE_BYTES + 9}
MODEL = "a" * 64


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    files = write_files(tmp_path / "files", SIZES)
    manifest = manifest_of(files)
    push(open_models((tmp_path / "store").as_uri()), files, manifest)
    return manifest


async def test_a_model_that_is_gone_from_the_bucket_comes_from_workers_that_have_it(
    plane: Plane, start: Callable[..., WorkerAgent], manifest: Manifest, tmp_path: Path
) -> None:
    def begin(name: str) -> WorkerAgent:
        stored = ModelStoreConfig(model_store=(tmp_path / "store").as_uri(), model_cache=tmp_path / name)
        config = EngineProcessConfig(model=manifest.reference, stored=stored, peers="127.0.0.1")
        return start("--fetch", config.to_json())

    first = begin("first")
    await eventually(lambda: first._models.is_ready)
    shutil.rmtree(tmp_path / "store" / "models" / manifest.hash / "small")
    others = [begin("second"), begin("third")]
    for agent in others:
        await eventually(lambda agent=agent: agent._models.is_ready)  # type: ignore[misc]
    for name in ("second", "third"):
        for path in SIZES:
            got = tmp_path / name / "models" / manifest.hash / "small" / path
            assert got.read_bytes() == (tmp_path / "files" / path).read_bytes()


async def test_a_worker_that_should_listen_on_a_public_address_does_not_start(
    plane: Plane, start: Callable[..., WorkerAgent], manifest: Manifest, tmp_path: Path
) -> None:
    stored = ModelStoreConfig(model_store=(tmp_path / "store").as_uri(), model_cache=tmp_path / "cache")
    config = EngineProcessConfig(model=manifest.reference, stored=stored, peers="0.0.0.0")
    agent = start("--fetch", config.to_json())
    await eventually(lambda: agent._state.is_over)


def peer(**values: Any) -> dict[str, Any]:
    address = {"host": "10.0.0.1", "port": 6881} | values.pop("address", {})
    return {"model": MODEL, "address": address} | values


async def test_a_worker_is_told_of_the_peers_in_models_that_it_reports(plane: Plane) -> None:
    async with httpx.AsyncClient(base_url=plane.url) as http:
        first, second = await HandWorker.register(http), await HandWorker.register(http)
        await first.beat("initializing", peers=[peer()])
        await second.beat("initializing", peers=[peer(address={"port": 6882})])

        async def advice() -> Any:
            response = await http.get(f"/v1/workers/{first.id}/peers", params={"model": MODEL})
            return response.raise_for_status().json()

        told = await advice()
        assert told["peers"] == [{"host": "10.0.0.1", "port": 6882}]
        assert told["share"] == {"index": 1, "num_readers": 1, "num_starting": 2}, "others may join"
        while told["share"]["index"]:
            await asyncio.sleep(0.1)
            told = await advice()
        assert told["share"] == {"index": 0, "num_readers": 2, "num_starting": 2}
        other = await http.get(f"/v1/workers/{first.id}/peers", params={"model": "b" * 64})
        assert other.json()["peers"] == []
        assert (await http.get(f"/v1/workers/{first.id}/peers?model=x")).status_code == 422


@pytest.mark.parametrize(
    "peers",
    [
        [peer(address={"host": "8.8.8.8"})],
        [peer(address={"host": "example.com"})],
        [peer(address={"port": 0})],
        [peer(model="x")],
        [peer(), peer(address={"host": "10.0.0.2"})],
        [peer()] * 17,
    ],
)
async def test_impossible_peers_are_refused(plane: Plane, peers: list[dict[str, Any]]) -> None:
    async with httpx.AsyncClient(base_url=plane.url) as http:
        worker = await HandWorker.register(http)
        assert (await worker.beat("initializing", peers=peers)).status_code == 422
