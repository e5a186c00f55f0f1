"""A request of many images takes its step in turns: others go between, and no image changes (INV-1)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from torch import Tensor

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.requests.request_bounds import MAX_IMAGES, MAX_STEPS
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult, StepOutput
from diffuserve.engine.policy.step_order import StepOrder
from diffuserve.models.pipelines.base import Pipeline
from diffuserve.samplers.base import Memory, ScheduleStep
from diffuserve.samplers.flow_match_euler import FlowMatchEuler
from diffuserve.testing.fake_pipeline import FakePipeline
from support.engine_families import FAMILIES, pipeline_of
from support.images import psnr
from support.waiting import block_until

SMALL = GenerationParams(prompt="a red circle", width=64, height=64, num_inference_steps=2, seed=1)
LARGE = replace(SMALL, prompt="a blue star", num_inference_steps=3, seed=2, num_images=5)


class NoisySampler(FlowMatchEuler):
    """Adds a little noise in each step, as ancestral samplers do."""

    def draws_noise(self, at: ScheduleStep) -> bool:
        return True

    def step(
        self, latents: Tensor, prediction: Tensor, at: ScheduleStep, memory: Memory, noise: Tensor | None
    ) -> tuple[Tensor, Memory]:
        assert noise is not None
        moved, memory = super().step(latents, prediction, at, memory, None)
        return moved + 0.1 * noise, memory


def two_at_a_time(pipeline: Pipeline) -> EngineConfig:
    """Return a configuration with which two images fill a step."""
    resolved = pipeline.spec.resolve(LARGE, seed=0)
    tokens = pipeline.spec.workload(resolved).step_tokens // LARGE.num_images
    return EngineConfig(token_budget=2 * tokens, num_threads=1)


def sizes(fake: FakePipeline, prompt: str = LARGE.prompt) -> list[int]:
    """Return the number of images of each forward pass with this prompt; 0 for others."""
    return [
        sum(params.num_images for params in batch if params.prompt == prompt)
        for batch in fake.denoised_batches
    ]


def outputs_of(engine: Engine) -> list[StepOutput]:
    outputs = []
    while step := engine.step():
        outputs += step
    return outputs


def result_of(outputs: Sequence[StepOutput], request_id: str) -> GenerationResult:
    (result,) = (each.result for each in outputs if each.request_id == request_id and each.result is not None)
    return result


@pytest.mark.parametrize("family", FAMILIES)
def test_images_are_those_of_a_single_step_whatever_its_turns(
    family: str, request: pytest.FixtureRequest
) -> None:
    pipeline = pipeline_of(family, request)
    with Engine(pipeline, EngineConfig(token_budget=10**9)) as engine:
        whole = engine.generate(LARGE).images
    with Engine(pipeline, two_at_a_time(pipeline)) as engine:
        in_turns = engine.generate(LARGE).images
    assert len(in_turns) == 5
    assert min(psnr(*pair) for pair in zip(in_turns, whole, strict=True)) >= 50.0


def test_a_turn_has_as_many_images_as_fit_a_step(fake: FakePipeline) -> None:
    with Engine(fake, two_at_a_time(fake)) as engine:
        engine.generate(LARGE)
    assert sizes(fake) == [2, 2, 1] * 3


def beside_two_large_ones(fake: FakePipeline, urgent: GenerationParams, ageing_steps: int = 16) -> list[int]:
    """Have an urgent request come in a turn of the costliest ones; return its images in the passes after."""
    costliest = replace(LARGE, num_images=MAX_IMAGES, num_inference_steps=MAX_STEPS)
    arrives_in = 7
    with Engine(fake, replace(two_at_a_time(fake), ageing_steps=ageing_steps)) as engine:

        def arrive(batch: Sequence[GenerationParams]) -> None:
            if len(fake.denoised_batches) == arrives_in:
                engine.add(urgent, priority=1)

        fake.on_denoise = arrive
        for _ in range(2):
            engine.add(costliest)
        while not any(output.finished for output in engine.step()):
            pass
    last = max(number for number, count in enumerate(sizes(fake, urgent.prompt)) if count)
    return sizes(fake, urgent.prompt)[arrives_in : last + 1]


def test_an_urgent_request_waits_for_the_turn_under_way_alone(fake: FakePipeline) -> None:
    assert beside_two_large_ones(fake, SMALL) == [1, 1]


def test_age_lets_large_requests_between_the_steps_of_urgent_ones_now_and_then(fake: FakePipeline) -> None:
    passes = beside_two_large_ones(fake, replace(SMALL, num_inference_steps=60), ageing_steps=4)
    assert 60 < len(passes) <= 60 + 2 * 60 // 8, "one turn of each in eight steps"


def test_by_arrival_small_requests_of_the_same_priority_go_before_large_ones(fake: FakePipeline) -> None:
    config = replace(two_at_a_time(fake), ageing_steps=4, step_order=StepOrder.ARRIVAL)
    with Engine(fake, config) as engine:
        large = engine.add(LARGE)
        small = [engine.add(replace(SMALL, num_inference_steps=20, seed=n)) for n in range(3)]
        finished = [output.request_id for output in outputs_of(engine) if output.finished]
    assert sorted(finished) == sorted([large, *small])
    turns = [count for count in sizes(fake) if count]
    assert len(turns) == 9, "no turn is done twice"
    assert len(max("".join("L" if count else "s" for count in sizes(fake)[:20]).split("s"))) <= 1


def test_every_step_is_reported_once_when_all_images_have_done_it(fake: FakePipeline) -> None:
    with Engine(fake, two_at_a_time(fake)) as engine:
        engine.add(LARGE, preview=True)
        outputs = outputs_of(engine)
    denoised = [output for output in outputs if not output.finished]
    assert [output.step for output in denoised] == [1, 2, 3]
    assert all(len(output.previews) == 5 for output in denoised)


def test_a_checkpoint_within_a_step_goes_on_from_its_beginning(fake: FakePipeline) -> None:
    fake.solver = NoisySampler()
    with Engine(fake, two_at_a_time(fake)) as engine:
        whole = engine.generate(LARGE)
        request_id = engine.add(LARGE)
        engine.step()
        state = engine._core.requests.find(request_id)
        assert state is not None
        engine._core.step([], [])  # a turn of its second step
        assert len(state.predicted) == 1
        kept = engine.checkpoint(request_id)
        going_on = result_of(outputs_of(engine), request_id)
        resumed = engine.add(LARGE, resume=kept)
        again = result_of(outputs_of(engine), resumed)
    assert kept.step == 1
    assert going_on.images == whole.images
    assert again.images == whole.images


def test_a_request_that_is_swapped_out_within_a_step_gives_the_same_images(fake: FakePipeline) -> None:
    fake.solver = NoisySampler()
    with Engine(fake, two_at_a_time(fake)) as engine:
        whole = engine.generate(LARGE)
        request_id = engine.add(LARGE)
        engine.step()
        engine._core.step([], [])
        state = engine._core.requests.find(request_id)
        assert state is not None
        engine._core._swap_out(state)
        assert result_of(outputs_of(engine), request_id).images == whole.images


def test_a_request_that_is_swapped_out_after_each_turn_comes_to_its_end(fake: FakePipeline) -> None:
    """Small requests that want its memory between any two of its turns cost it no turn."""
    with Engine(fake, two_at_a_time(fake)) as engine:
        whole = engine.generate(LARGE)
        turns = sizes(fake)
        request_id = engine.add(LARGE)
        outputs = engine.step()
        for _ in turns[3:]:
            if state := engine._core.requests.stepping.get(request_id):
                engine._core._swap_out(state)
            outputs += engine._core.step([], [])
        again = result_of([*outputs, *outputs_of(engine)], request_id)
    assert sizes(fake) == 2 * turns
    assert again.images == whole.images


def test_a_failure_in_a_turn_fails_its_request_alone(fake: FakePipeline) -> None:
    def fail(batch: Sequence[GenerationParams]) -> None:
        if len(fake.denoised_batches) > 4 and any(params.prompt == LARGE.prompt for params in batch):
            raise RuntimeError("boom")

    fake.on_denoise = fail
    with Engine(fake, two_at_a_time(fake)) as engine:
        large, small = engine.generate([LARGE, SMALL], return_exceptions=True)
    assert isinstance(large, Exception)
    assert isinstance(small, GenerationResult)


def test_the_device_seconds_of_turns_are_their_requests(fake: FakePipeline) -> None:
    with Engine(fake, two_at_a_time(fake)) as engine:
        result = engine.generate(LARGE)
        assert result.timings.device_seconds >= engine.stats.denoise_seconds


def test_images_are_decoded_in_turns_as_well(fake: FakePipeline) -> None:
    """A request that comes while those of a large one are decoded waits for one call of the decoder."""
    decoded: list[tuple[str, int]] = []
    fake.max_decode_pixels = 2 * 64 * 64
    with Engine(fake, EngineConfig(num_threads=1)) as engine:

        def note(batch: Sequence[GenerationParams]) -> None:
            decoded.extend((params.prompt, params.num_images) for params in batch)
            if len(decoded) == 1:
                block_until(lambda: engine._core.num_decoding == 2)

        fake.on_decode = note
        results = engine.generate([LARGE, replace(SMALL, num_inference_steps=3)])
    assert [len(result.images) for result in results] == [5, 1]
    assert decoded == [(LARGE.prompt, 2), (SMALL.prompt, 1), (LARGE.prompt, 2), (LARGE.prompt, 1)]
