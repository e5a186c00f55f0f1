"""Requests that wait for more urgent ones give back their memory, and come back where they were."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.models.families.any_pipeline.pipeline import AnyPipeline
from support.tiny_pipelines import tiny_folder

SLOW = GenerationParams(prompt="a red circle", seed=1, width=64, height=64, num_inference_steps=8)
URGENT = GenerationParams(prompt="a blue star", seed=2, width=64, height=64, num_inference_steps=4)


def open_engine(memory_bytes: int | None = None, model: str = "tiny-flux") -> Engine:
    """Open an engine in which one request fills a step."""
    config = EngineConfig(
        token_budget=1, memory_budget_bytes=memory_bytes, prompt_cache_bytes=0, deterministic=True
    )
    return Engine.load(model, device="cpu", dtype="float32", config=config)


def step_bytes(engine: Engine) -> int:
    pipeline = engine.pipeline
    return pipeline.step_bytes(pipeline.spec.workload(pipeline.spec.resolve(SLOW, 0)))


@pytest.fixture(scope="module")
def alone() -> Iterator[torch.Tensor]:
    with open_engine() as engine:
        engine.add(SLOW, until_denoised=True)
        yield drawn(engine)


def drawn(engine: Engine) -> torch.Tensor:
    """Return the finished latents of the slow request, once all requests are done."""
    found = None
    while outputs := engine.step():
        for output in outputs:
            assert output.error is None
            if output.result is not None and output.result.params.prompt == SLOW.prompt:
                found = output.result.latents
    assert found is not None
    return found


def interrupted(engine: Engine) -> str:
    """Do three steps of the slow request, then one of an urgent one; return the slow one's id."""
    request_id = engine.add(SLOW, until_denoised=True)
    for _ in range(3):
        engine.step()
    engine.add(URGENT, priority=1, until_denoised=True)
    engine.step()
    return request_id


def test_a_request_that_gave_back_its_memory_gives_the_same_image(alone: torch.Tensor) -> None:
    with open_engine() as engine:
        needed = step_bytes(engine)
    with open_engine(needed) as engine:
        request_id = interrupted(engine)
        state = engine._core.requests.find(request_id)
        assert state is not None
        assert (state.latents, state.conditioning, state.held_bytes) == (None, None, 0)
        assert engine.stats.num_swapped_out == 1
        assert torch.equal(drawn(engine), alone)
        assert engine.stats.num_swapped_out == 1


def test_it_keeps_its_memory_where_there_is_enough(alone: torch.Tensor) -> None:
    with open_engine(1 << 34) as engine:
        interrupted(engine)
        assert torch.equal(drawn(engine), alone)
        assert engine.stats.num_swapped_out == 0


def test_its_checkpoint_is_that_of_a_request_with_memory(alone: torch.Tensor) -> None:
    with open_engine() as engine:
        needed = step_bytes(engine)
    with open_engine(needed) as engine:
        checkpoint = engine.checkpoint(interrupted(engine))
    assert checkpoint.step == 3
    with open_engine() as engine:
        engine.add(SLOW, until_denoised=True, resume=checkpoint)
        assert torch.equal(drawn(engine), alone)


def test_one_that_is_aborted_meanwhile_is_gone() -> None:
    with open_engine() as engine:
        needed = step_bytes(engine)
    with open_engine(needed) as engine:
        request_id = interrupted(engine)
        assert engine.abort(request_id)
        while engine.step():
            pass
        assert engine.num_unfinished == 0


@pytest.fixture(scope="module")
def diffusers_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_folder("sd3", tmp_path_factory.mktemp("tiny")))


def images_of_the_slow_one(engine: Engine, room: int) -> list[bytes]:
    """Let an urgent request interrupt two images of a slow one in so much `room`; return them."""
    slow = replace(SLOW, num_images=2, num_inference_steps=4)
    request_id = engine.add(slow)
    engine._core.budgets.memory_bytes = room
    engine.step()
    engine.step()
    engine.add(URGENT, priority=1)
    while outputs := engine.step():
        for output in outputs:
            assert output.error is None
            if output.result is not None and output.request_id == request_id:
                return [image.tobytes() for image in output.result.images]
    raise AssertionError("it never finished")


@pytest.mark.filterwarnings("ignore")  # diffusers' own
@pytest.mark.parametrize("resumes", [True, False])
def test_runs_give_back_their_memory_where_they_can_begin_anew(diffusers_model: str, resumes: bool) -> None:
    with open_engine(model=diffusers_model) as engine:
        expected = images_of_the_slow_one(engine, room=1 << 34)
        assert engine.stats.num_swapped_out == 0
    with open_engine(model=diffusers_model) as engine:
        assert isinstance(engine.pipeline, AnyPipeline)
        engine.pipeline.spec = replace(engine.pipeline.spec, resumes=resumes)
        assert images_of_the_slow_one(engine, room=step_bytes(engine)) == expected
        assert (engine.stats.num_swapped_out > 0) is resumes
