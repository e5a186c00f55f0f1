"""A worker with a model of a store: its engine process fetches it and keeps it, while it lives."""

from collections.abc import Callable
from pathlib import Path

from diffuserve.agent.agent import WorkerAgent
from diffuserve.agent.exit_codes import CANNOT_START
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.models.bundled import bundled_models
from diffuserve.modelstore.bucket import open_models
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.description import describe
from diffuserve.modelstore.locks import FileLock
from diffuserve.modelstore.publishing import push
from diffuserve.protocol.config import ImageOptions
from support.plane import Plane, until
from support.waiting import eventually

Start = Callable[..., WorkerAgent]
UNFILTERED = ImageOptions(image_filter="none")


async def test_a_worker_serves_a_model_of_a_store_and_keeps_it(
    plane: Plane, start: Start, tmp_path: Path
) -> None:
    source, url = bundled_models()["tiny-flux"], (tmp_path / "store").as_uri()
    manifest = describe(source, "mine", "apache-2.0", "a test")
    push(open_models(url), source, manifest)
    stored = ModelStoreConfig(model_store=url, model_cache=tmp_path / "cache")
    agent = start(engine_command=(), model="mine", stored=stored, device="cpu", images=UNFILTERED)
    job = await plane.submit(model="tiny-flux")
    await until(plane, job, JobStatus.SUCCEEDED)
    assert (tmp_path / "cache" / "models" / manifest.hash / "mine" / "model_index.json").is_file()
    lock = FileLock(tmp_path / "cache" / "locks" / manifest.hash)
    assert not lock.try_take(), "the engine process holds it"
    agent.drain()
    await eventually(lock.try_take)
    lock.release()


async def test_a_worker_whose_model_lies_ends_with_the_reason(start: Start, tmp_path: Path) -> None:
    store = tmp_path / "store"
    version = "0" * 64
    (store / "names" / "mine").mkdir(parents=True)
    (store / "names" / "mine" / version).touch()
    (store / "models" / version).mkdir(parents=True)
    (store / "models" / version / "manifest.json").write_text("{}")
    stored = ModelStoreConfig(model_store=store.as_uri(), model_cache=tmp_path / "cache")
    agent = start(engine_command=(), model="mine", stored=stored, device="cpu", images=UNFILTERED)
    assert await agent.over == CANNOT_START  # type: ignore[attr-defined]
    assert "a manifest that is none" in agent._models.all[0].refusal
