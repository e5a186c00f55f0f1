"""An engine tells what its work of the moment should take: a long step is not taken for a stuck one."""

from collections.abc import Sequence

import pytest

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.testing.fake_pipeline import FakePipeline

CLIP = GenerationParams(prompt="a clip", width=64, height=64, num_frames=9, num_inference_steps=2, seed=1)


def test_an_engine_predicts_what_it_is_doing_and_nothing_between() -> None:
    pipeline, told = FakePipeline(), dict[str, list[float]](encode=[], denoise=[], decode=[])
    with Engine(pipeline, EngineConfig(num_threads=1)) as engine:

        def note(phase: str) -> None:
            told[phase].append(engine.predicted_seconds)

        def on_encode(_requests: Sequence[GenerationParams]) -> None:
            note("encode")

        def on_denoise(_requests: Sequence[GenerationParams]) -> None:
            note("denoise")

        def on_decode(_requests: Sequence[GenerationParams]) -> None:
            note("decode")

        pipeline.on_encode, pipeline.on_denoise, pipeline.on_decode = on_encode, on_denoise, on_decode
        prior = pipeline.cost_prior()
        workload = engine.spec.workload(engine.spec.resolve(CLIP, seed=0))
        engine.generate([CLIP])
        step, encode = prior.step_seconds([workload]), prior.encode_seconds([workload])
        assert told["encode"] == [told["denoise"][0]] == [pytest.approx(step + encode)]
        assert len(told["denoise"]) == 2
        assert 0 < told["denoise"][1] < told["denoise"][0] * 1e3
        assert told["decode"]
        assert min(told["decode"]) > 0
        assert engine.predicted_seconds == 0
