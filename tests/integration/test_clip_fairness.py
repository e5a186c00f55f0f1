"""A real worker serves one tenant's clips and another's images of the same model, fairly by their work."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from diffuserve.agent.agent import WorkerAgent
from diffuserve.domain.jobs.job import Job, JobStatus, NewJob
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.jobs.policy.pricing import predict
from diffuserve.protocol.config import ImageOptions
from support.fake_family.install import install_fake_family, write_fake_model
from support.plane import Plane, until
from support.waiting import eventually

NUM_CLIPS, NUM_IMAGES = 8, 3
HELD = 2  # a step's worth runs, and one waits in the engine: a clip is larger than either


async def test_at_most_one_more_clip_is_claimed_before_another_tenants_image(
    plane: Plane, start: Callable[..., WorkerAgent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the clips that the worker holds, at most one is claimed before an image, however many wait."""
    monkeypatch.syspath_prepend(str(install_fake_family(tmp_path / "site")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    start(
        engine_command=(),
        model=str(write_fake_model(tmp_path / "clouds")),
        device="cpu",
        images=ImageOptions(image_filter="none"),
        engine=EngineConfig(token_budget=128, num_threads=1),
    )
    await eventually(lambda: _is_ready(plane))
    clips = [await _submit(plane, "flood", num_frames=17, num_inference_steps=50) for _ in range(NUM_CLIPS)]
    await eventually(lambda: _has_started(plane, clips[0]))
    images = [await _submit(plane, "light", num_frames=1) for _ in range(NUM_IMAGES)]
    images = [await until(plane, image, JobStatus.SUCCEEDED) for image in images]
    clips = [await until(plane, clip, JobStatus.SUCCEEDED) for clip in clips]

    assert clips[0].cost_seconds > 10 * images[0].cost_seconds
    assert sum(_at(clip.started_at) > images[-1].created_at for clip in clips) > HELD, "the flood went on"
    own_work = 0.0
    for image in images:
        # A tenant is charged what was predicted, and once a job has ended what it really took.
        taken = [
            min(clip.cost_seconds, _actual(clip))
            for clip in clips
            if image.created_at < _at(clip.started_at) <= _at(image.started_at)
        ]
        assert sum(taken) <= own_work + clips[0].cost_seconds
        own_work += max(image.cost_seconds, _actual(image))


async def _is_ready(plane: Plane) -> bool:
    async with httpx.AsyncClient(base_url=plane.url) as client:
        return (await client.get("/readyz")).is_success


async def _has_started(plane: Plane, job: Job) -> bool:
    return (await plane.store.jobs.get(job.id)).status is not JobStatus.QUEUED


async def _submit(plane: Plane, tenant: str, **values: Any) -> Job:
    served = (await plane.store.operations.models())["clouds"]
    kind = "image.generate" if values["num_frames"] == 1 else "video.generate"
    params = served.spec.resolve(GenerationParams(prompt="a red cloud", **values), seed=1)
    price = predict(served.spec, served.fit, params)
    new = NewJob(
        tenant_id=tenant,
        kind=kind,
        model="clouds",
        input=params.to_dict(),
        output_format="png" if kind == "image.generate" else "mp4",
        **vars(price),
    )
    return await plane.store.jobs.submit(new)


def _actual(job: Job) -> float:
    assert job.actual_seconds is not None
    return job.actual_seconds


def _at(time: float | None) -> float:
    assert time is not None
    return time
