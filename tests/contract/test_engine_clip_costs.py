"""The seconds and the memory of clips: what is charged, refused, and begun beside others."""

import threading
from collections.abc import Iterator, Sequence

import pytest
import torch

from diffuserve.domain.errors import (
    InvalidParams,
)
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from support.clip_engine import SPEC, WatchedPipeline, clip, drain, image
from support.waiting import HANG_SECONDS


@pytest.fixture
def pipeline() -> WatchedPipeline:
    return WatchedPipeline(spec=SPEC)


@pytest.fixture
def engine(pipeline: WatchedPipeline) -> Iterator[Engine]:
    with Engine(pipeline, EngineConfig(num_threads=1)) as engine:
        yield engine
    assert pipeline.num_open == 0


def test_the_seconds_of_chunks_are_charged_and_learned(pipeline: WatchedPipeline, engine: Engine) -> None:
    before = engine.cost_model.fit.decode
    for _ in range(3):
        result = engine.generate(clip(num_frames=81))
        assert 0 < result.timings.device_seconds <= result.timings.total_seconds
    assert engine.cost_model.fit.decode != before


def test_a_clip_that_is_too_large_to_decode_is_refused_unless_another_engine_decodes_it(
    pipeline: WatchedPipeline,
) -> None:
    pipeline.bytes_per_decoded_pixel = 2**20
    budget = EngineConfig(memory_budget_bytes=600 * 2**20, num_threads=1)
    with Engine(pipeline, budget) as engine:
        with pytest.raises(InvalidParams, match=r"about 1,024 MiB at once, .* free; try 16x16"):
            engine.add(clip())
        engine.add(clip(), until_denoised=True)
        denoised = drain(engine)[-1].result
        assert denoised is not None
        with pytest.raises(InvalidParams, match="1,024 MiB"):
            engine.add(clip(), latents=denoised.latents)
        assert len(engine.generate(image()).frames[0]) == 1


def test_a_clip_that_is_too_large_for_a_step_is_refused_unless_it_is_only_decoded(
    pipeline: WatchedPipeline,
) -> None:
    pipeline.bytes_per_token = 2**20
    with Engine(pipeline, EngineConfig(memory_budget_bytes=130 * 2**20, num_threads=1)) as engine:
        with pytest.raises(InvalidParams, match=r"160 MiB at once, .* try num_frames=13 or 16x16"):
            engine.add(clip())
        engine.add(clip(), latents=torch.zeros(1, 3, 5, 4, 4))
        result = drain(engine)[-1].result
    assert result is not None
    assert len(result.frames[0]) == 17


def test_no_more_clips_are_begun_than_memory_holds(pipeline: WatchedPipeline) -> None:
    max_open: list[int] = []
    pipeline.on_decode = lambda _: max_open.append(pipeline.num_open)
    pipeline.bytes_per_decoded_pixel = 2**10
    clip_bytes = pipeline.decode_bytes(clip())
    config = EngineConfig(memory_budget_bytes=2 * clip_bytes, num_threads=2, token_budget=10_000)
    with Engine(pipeline, config) as engine:
        results = engine.generate([clip(f"{number}") for number in range(5)])
    assert [len(result.frames[0]) for result in results] == [17] * 5
    assert max(max_open) == 2


@pytest.mark.parametrize("num_latent_frames", [1, 5])
def test_steps_have_the_memory_that_decoding_leaves_them(
    pipeline: WatchedPipeline, num_latent_frames: int
) -> None:
    """Two images fit in a step, but only one of them beside an image or a clip that is being decoded."""
    is_decoding, go = threading.Event(), threading.Event()

    def hold(params: Sequence[GenerationParams]) -> None:
        is_decoding.set()
        assert go.wait(HANG_SECONDS)

    pipeline.on_decode = hold
    beside, after = (
        [image(f"{when} {i}", num_inference_steps=9) for i in range(2)] for when in ("beside", "after")
    )
    step_bytes = pipeline.step_bytes(SPEC.workload(SPEC.resolve(beside[0], seed=0)))
    pipeline.bytes_per_decoded_pixel = step_bytes // (32 * 32)
    config = EngineConfig(memory_budget_bytes=2 * step_bytes, prompt_cache_bytes=0, num_threads=1)
    with Engine(pipeline, config) as engine:
        decoded = clip() if num_latent_frames > 1 else image("decoded")
        held = engine.add(decoded, latents=torch.zeros(1, 3, num_latent_frames, 4, 4))
        engine.add(beside[0])
        engine.step()
        assert is_decoding.wait(HANG_SECONDS)
        engine.add(beside[1])
        for _ in range(4):
            engine.step()
        assert {len(batch) for batch in pipeline.denoised_batches} == {1}
        go.set()
        while not any(output.request_id == held and output.result for output in engine.step()):
            pass
        for params in after:
            engine.add(params)
        drain(engine)
    assert max(len(batch) for batch in pipeline.denoised_batches) == 2


@pytest.mark.parametrize(("cache_bytes", "most"), [(0, 2), (2**20, 1)])
def test_steps_have_the_memory_that_kept_conditioning_leaves_them(
    pipeline: WatchedPipeline, cache_bytes: int, most: int
) -> None:
    """Two images fit in a step to the byte."""
    images = [image("first", num_inference_steps=3), image("second", num_inference_steps=3)]
    step_bytes = pipeline.step_bytes(SPEC.workload(SPEC.resolve(images[0], seed=0)))
    config = EngineConfig(
        memory_budget_bytes=2 * step_bytes, prompt_cache_bytes=cache_bytes, num_threads=1, token_budget=10_000
    )
    with Engine(pipeline, config) as engine:
        engine.generate([image("zeroth", num_inference_steps=1)])
        pipeline.denoised_batches.clear()
        engine.generate(images)
    assert max(len(batch) for batch in pipeline.denoised_batches) == most
