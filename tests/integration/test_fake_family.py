"""A family of another package is served end to end, and nothing outside the models knows of it.

It has what no built-in family has: guidance by two passes, frames, and prompts read by cross-attention.
"""

import io
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import httpx
import pytest

from diffuserve.agent.agent import WorkerAgent
from diffuserve.domain.errors import ModelNotCapable
from diffuserve.domain.jobs.job import VIDEO_GENERATE, Job, JobStatus
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.events.base import job_topic
from diffuserve.models.registry import read_offer
from diffuserve.protocol.config import ImageOptions
from diffuserve.storage.live_parts import live_key
from diffuserve.testing.fake_pipeline import FakePipeline
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
    assert [frame.tobytes() for frame in alone.frames[0]] == together, "neighbors change nothing"


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
    await eventually(lambda: agent._models.is_ready)
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
        role = "image" if job is short else "video"
        assert [artifact.role for artifact in done.result.artifacts].count(role) == 1


async def test_a_worker_stores_clips_with_their_parts_which_are_swept_later(
    plane: Plane, start: Start, model: str
) -> None:
    start(engine_command=(), model=model, device="cpu", images=ImageOptions(image_filter="none"))
    job = await plane.submit(
        model="clouds",
        kind=VIDEO_GENERATE,
        input=CLIP | {"seed": 1, "fps": 8, "guidance_scale": 1.0},
        output_format="mp4",
        live=True,
    )
    with plane.bus.subscribe(job_topic(job.id)) as news:
        done = await until(plane, job, JobStatus.SUCCEEDED)
        messages = [message async for message in _heard(news)]
    assert done.result is not None
    video, *others = done.result.artifacts
    assert (video.role, video.num_frames, video.content_type) == ("video", CLIP["num_frames"], "video/mp4")
    assert {artifact.role for artifact in others} == {"poster", "sprites", "thumbnail"}
    announced = [message["num_parts"] for message in messages if message["type"] == "live"]
    assert announced == list(range(1, len(announced) + 1))
    keys = [live_key(job.id, done.lease_token, number) for number in range(len(announced))]
    parts = [b"".join([chunk async for chunk in plane.artifacts.read(key)]) for key in keys]
    with av.open(io.BytesIO(b"".join(parts)), "r") as container:
        assert len(list(container.decode(video=0))) == CLIP["num_frames"]


async def _heard(news: Any) -> AsyncIterator[Mapping[str, Any]]:
    while (message := await news.get(0.1)) is not None:
        yield message


async def _is_offered(plane: Plane) -> bool:
    return "clouds" in await plane.store.operations.models()


async def _submit(plane: Plane, values: dict[str, Any]) -> Job:
    async with httpx.AsyncClient(base_url=plane.url) as client:
        kind = "image.generate" if values["num_frames"] == 1 else VIDEO_GENERATE
        body = {"model": "clouds", "kind": kind, "input": values}
        response = await client.post("/v1/jobs", json=body)
    return await plane.store.jobs.get(response.raise_for_status().json()["id"])
