"""A worker of two models whose memory holds one: jobs of both succeed, with few loads, whatever dies.

One is bundled, the other in a bucket.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from diffuserve.agent.agent import WorkerAgent
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.models.bundled import bundled_models
from diffuserve.modelstore.bucket import open_models
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.description import describe
from diffuserve.modelstore.locks import FileLock
from diffuserve.modelstore.publishing import push
from diffuserve.protocol.config import EngineProcessConfig, ImageOptions
from support.plane import Plane, until
from support.waiting import eventually

Start = Callable[..., WorkerAgent]
FLUX, SD = "tiny-flux", "tiny-sd"  # of 15 MB each
STORED = "mine"  # the second one, in a bucket
ONE_MODEL_BYTES = 20_000_000
UNFILTERED = ImageOptions(image_filter="none")
INPUT = {"prompt": "a red circle", "seed": 1, "width": 64, "height": 64, "num_inference_steps": 1}


@pytest.fixture
def stored(tmp_path: Path) -> ModelStoreConfig:
    """Return the options of a bucket that has the second model, and of a cache that has nothing."""
    source, url = bundled_models()[SD], (tmp_path / "store").as_uri()
    push(open_models(url), source, describe(source, STORED, "apache-2.0", "a test"))
    return ModelStoreConfig(model_store=url, model_cache=tmp_path / "cache")


def is_held(stored: ModelStoreConfig) -> bool:
    """Return whether a process keeps the model of the bucket in the cache."""
    (path,) = (stored.model_cache / "models").iterdir()
    lock = FileLock(stored.model_cache / "locks" / path.name)
    is_free = lock.try_take()
    lock.release()
    return not is_free


async def test_jobs_of_two_models_take_turns_in_memory_for_one(
    plane: Plane, start: Start, stored: ModelStoreConfig
) -> None:
    jobs = [await plane.submit(model=model, input=INPUT) for _ in range(3) for model in (FLUX, SD)]
    further = EngineProcessConfig(model=STORED, stored=stored, device="cpu", images=UNFILTERED)
    agent = start(
        engine_command=(),
        model=FLUX,
        device="cpu",
        images=UNFILTERED,
        further=(further,),
        resident_bytes=ONE_MODEL_BYTES,
    )
    flux, sd = agent._models.all
    for job in jobs:
        await until(plane, job, JobStatus.SUCCEEDED)
    assert (flux.num_loads, sd.num_loads) == (1, 1), "jobs of a model are drawn together"
    assert (flux.is_resident, sd.is_resident) == (False, True)
    assert is_held(stored)
    (worker,) = await plane.store.operations.workers()
    assert worker.models == (FLUX, SD)

    async def is_measured() -> bool:
        served = await plane.store.operations.models()
        return served[SD].fit.load_seconds > 0

    await eventually(is_measured)

    again = await plane.submit(model=FLUX, input=INPUT)
    await eventually(lambda: flux.is_loading and bool(agent._models.pids))
    os.kill(agent._models.pids[0], signal.SIGKILL)
    done = await until(plane, again, JobStatus.SUCCEEDED)
    assert (flux.num_loads, sd.num_loads) == (2, 1)
    assert not is_held(stored), "what is not in memory may give way in the cache"
    causes = [event.data.get("cause") for event in await plane.store.jobs.events_after(done.id)]
    assert "worker_lost" not in causes, "the death of an engine is not held against a job that waited for it"
