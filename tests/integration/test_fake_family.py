"""A family of another package is served end to end, and nothing outside the models knows of it.

It has what no built-in family has: guidance by two passes, frames, and prompts read by cross-attention.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from diffuserve.domain.errors import ModelNotCapable
from diffuserve.domain.job import Job, JobStatus
from diffuserve.domain.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.models.registry import read_offer
from diffuserve.testing.fake_pipeline import FakePipeline
from diffuserve.worker.agent import WorkerAgent
from diffuserve.worker.config import ImageOptions
from support.fake_family.install import install_fake_family, write_fake_model
from support.plane import Plane, until
from support.waiting import eventually

Start = Callable[..., WorkerAgent]
CLIP: dict[str, Any] = {"prompt": "a red cloud", "seed": 1, "width": 64, "height": 96, "num_frames": 17}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model of the fake family, which this process and its children know from here on."""
    monkeypatch.syspath_prepend(str(install_fake_family(tmp_path / "site")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return str(write_fake_model(tmp_path / "clouds"))


def test_an_engine_serves_guided_videos_beside_images(model: str) -> None:
    requests = [
        GenerationParams(**CLIP, guidance_scale=5.0),
        GenerationParams(prompt="a blue cloud", seed=2, guidance_scale=1.0, num_inference_steps=2),
    ]
    with Engine.load(model, device="cpu") as engine:
        video, image = engine.generate(requests)
        alone = engine.generate(requests[:1])[0]
    assert [len(frames) for frames in video.frames] == [17]
    assert [len(frames) for frames in image.frames] == [1]
    assert {frame.size for frame in video.frames[0]} == {(64, 96)}
    together = [frame.tobytes() for frame in video.frames[0]]
    assert [frame.tobytes() for frame in alone.frames[0]] == together, "neighbours change nothing"


def test_a_guided_request_takes_the_room_of_two(model: str) -> None:
    spec, _ = read_offer(model)
    pipeline = FakePipeline(spec=spec)
    guided = GenerationParams(prompt="a cloud", guidance_scale=5.0, num_inference_steps=2)
    plain = replace(guided, guidance_scale=1.0)
    tokens = spec.workload(spec.resolve(plain, seed=0)).step_tokens
    with Engine(pipeline, EngineConfig(token_budget=3 * tokens, num_threads=1)) as engine:
        engine.generate([plain] * 3)
        assert max(len(batch) for batch in pipeline.denoised_batches) == 3
        pipeline.denoised_batches.clear()
        engine.generate([guided] * 3)
        assert {len(batch) for batch in pipeline.denoised_batches} == {1}


def test_the_memory_budget_counts_both_passes(model: str) -> None:
    spec, _ = read_offer(model)
    pipeline = FakePipeline(spec=spec)
    plain = spec.resolve(GenerationParams(prompt="a cloud", guidance_scale=1.0), seed=0)
    enough = EngineConfig(memory_budget_bytes=pipeline.step_bytes(spec.workload(plain)))
    with Engine(pipeline, enough) as engine:
        engine.generate([plain])
        with pytest.raises(ValueError, match="try 32x32"):
            engine.add(replace(plain, guidance_scale=5.0))


def test_frames_that_the_model_cannot_generate_are_refused_with_the_nearest(model: str) -> None:
    with Engine.load(model, device="cpu") as engine, pytest.raises(ModelNotCapable, match="try 13 or 17"):
        engine.add(GenerationParams(**CLIP | {"num_frames": 15}))


async def test_a_worker_offers_and_serves_it_and_the_control_plane_prices_it(
    plane: Plane, start: Start, model: str
) -> None:
    agent = start(engine_command=(), model=model, device="cpu", images=ImageOptions(image_filter="none"))
    await eventually(lambda: agent._engine.is_ready)
    await eventually(lambda: _is_offered(plane))
    plain, guided, short = [
        await _submit(plane, CLIP | changes)
        for changes in ({"guidance_scale": 1.0}, {"guidance_scale": 5.0}, {"num_frames": 1})
    ]
    assert plain.step_tokens == 5 * (64 * 96 // 64), "latent frames, and no tokens of the prompt"
    assert guided.step_tokens == 2 * plain.step_tokens
    assert plain.step_tokens == 5 * short.step_tokens // 2, "which is guided by default"
    assert guided.cost_seconds > plain.cost_seconds > 0
    for job in (plain, guided, short):
        done = await until(plane, job, JobStatus.SUCCEEDED)
        assert done.result is not None
        assert [artifact.role for artifact in done.result.artifacts].count("image") == 1


async def _is_offered(plane: Plane) -> bool:
    return "clouds" in await plane.store.operations.models()


async def _submit(plane: Plane, values: dict[str, Any]) -> Job:
    async with httpx.AsyncClient(base_url=plane.url) as client:
        response = await client.post("/v1/jobs", json={"model": "clouds", "input": values})
    return await plane.store.jobs.get(response.raise_for_status().json()["id"])
