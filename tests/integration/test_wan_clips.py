"""Clips of a small Wan checkpoint are equal to the last bit, however they are decoded and beside whatever."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.costs.memory import check_memory
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult, StepOutput
from diffuserve.models.frames import Frames
from diffuserve.models.pipelines.base import packed
from diffuserve.models.registry import check_model
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint

CLIP = GenerationParams(
    prompt="a red ring falls", width=48, height=32, num_frames=5, num_inference_steps=2, seed=1
)
MIXED = [
    CLIP,
    GenerationParams(
        prompt="a star", width=32, height=48, num_frames=1, num_inference_steps=3, seed=2, num_images=2
    ),
    replace(CLIP, prompt="two blue squares", num_frames=9, num_inference_steps=3, guidance_scale=1.0),
    replace(CLIP, num_frames=9, num_images=2, seed=7),
    GenerationParams(prompt="a ring", width=48, height=32, num_frames=1, num_inference_steps=2, seed=3),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wan_checkpoint(tmp_path_factory.mktemp("model") / "wan", seed=5)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    config = EngineConfig(deterministic=True, token_budget=100_000, num_threads=2)
    with Engine.load(folder, device="cpu", dtype="float32", config=config) as engine:
        yield engine


def as_bytes(frames: Frames) -> list[bytes]:
    return [frame.tobytes() for frame in frames]


def clips_of(result: GenerationResult) -> list[list[bytes]]:
    return [as_bytes(frames) for frames in result.frames]


def drain(engine: Engine) -> list[StepOutput]:
    outputs = []
    while step := engine.step():
        outputs += step
    return outputs


def test_a_clip_is_the_same_alone_and_beside_clips_and_images(engine: Engine) -> None:
    alone = [clips_of(engine.generate(params)) for params in MIXED]
    steps = engine.stats.num_steps, engine.stats.num_request_steps
    together = [clips_of(result) for result in engine.generate(MIXED)]
    num_steps, num_request_steps = engine.stats.num_steps, engine.stats.num_request_steps
    assert num_request_steps - steps[1] > 2 * (num_steps - steps[0]), "they shared steps"
    assert together == alone
    assert [len(frames) for frames in chain.from_iterable(alone)] == [5, 1, 1, 9, 9, 9, 1]


def test_frames_are_the_same_streamed_collected_and_decoded_as_a_whole_by_another_engine(
    engine: Engine,
) -> None:
    params = replace(CLIP, num_images=2)
    collected = clips_of(engine.generate(params))
    streamed = engine.add(params, stream_frames=True)
    engine.add(params, until_denoised=True)
    engine.add(MIXED[-1])
    outputs = drain(engine)
    chunks = [output.chunk for output in outputs if output.request_id == streamed and output.chunk]
    assert [(chunk.index, chunk.start) for chunk in chunks] == [
        (n, start) for n in (0, 1) for start in (0, 1)
    ]
    frames = chain.from_iterable(as_bytes(chunk.frames) for chunk in chunks)
    assert list(frames) == collected[0] + collected[1]
    (denoised,) = [output.result for output in outputs if output.result and output.result.latents is not None]
    assert denoised.latents is not None
    (whole,) = packed(engine.pipeline).decode([denoised.latents], [denoised.params])
    assert [as_bytes(clip) for clip in whole if isinstance(clip, list)] == collected
    with Engine(engine.pipeline, EngineConfig(deterministic=True, num_threads=1)) as other:
        other.add(denoised.params, latents=denoised.latents)
        decoded = drain(other)[-1].result
    assert decoded is not None
    assert clips_of(decoded) == collected


def test_a_clip_that_is_too_large_is_refused_before_and_after_the_model_is_loaded(
    folder: Path, engine: Engine
) -> None:
    model = check_model(str(folder))
    large = model.spec.resolve(replace(CLIP, width=96, height=64, num_frames=17), seed=0)
    needed = engine.pipeline.decode_bytes(large)
    assert needed <= 2 * model.min_bytes(large)
    with pytest.raises(InvalidParams, match=r"1 × 96x64 × 17 frames.* try \d+x\d+$"):
        check_memory(model.spec, large, model.min_bytes, model.min_bytes(large) - 1)
    config = EngineConfig(memory_budget_bytes=needed - 1)
    refused = pytest.raises(InvalidParams, match=r"1 × 96x64 × 17 frames.* try \d+x\d+$")
    with Engine(engine.pipeline, config) as short, refused:
        short.add(large)
