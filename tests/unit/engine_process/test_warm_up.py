"""An engine draws an image and shows it to the filter before the first job."""

from dataclasses import replace
from typing import Any, cast

import pytest
from PIL import Image

from diffuserve.domain.safety import Action, FilterInfo, Verdict
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine_process import warm_up as module
from diffuserve.engine_process.output.image_output import ImageOutput
from diffuserve.engine_process.warm_up import warm_up
from diffuserve.testing.fake_pipeline import FAKE_SOUND_SPEC, FakePipeline
from support.hosted_engine import ScriptedJudge


class _Filter:
    """Passes every image, and keeps its size."""

    info = FilterInfo("test", "1", {})

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []

    def check(self, image: Image.Image) -> Verdict:
        self.sizes.append(image.size)
        return Verdict(())


@pytest.fixture
def steps(fake: FakePipeline) -> list[tuple[int | None, int | None, int | None]]:
    """Width, height and number of steps of what the pipeline denoises."""
    seen: list[tuple[int | None, int | None, int | None]] = []

    def note(requests: list[Any]) -> None:
        seen.extend((params.width, params.height, params.num_inference_steps) for params in requests)

    fake.on_denoise = cast(Any, note)
    return seen


def test_one_step_is_drawn_at_the_models_own_size(fake: FakePipeline, steps: list[Any]) -> None:
    seen = _Filter()
    with Engine(fake, EngineConfig()) as engine:
        warm_up(engine, ImageOutput(seen, "fake"))
        assert steps == [(64, 64, 1)]
        assert seen.sizes == [(64, 64)]
        assert engine.num_unfinished == 0


def test_a_size_that_would_take_long_is_not_drawn(
    fake: FakePipeline, steps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST_SECONDS", 0.0)
    with Engine(fake, EngineConfig()) as engine:
        warm_up(engine, ImageOutput(None, "fake"))
        assert steps == [(engine.spec.min_size, engine.spec.min_size, 1)]


def test_a_warm_up_that_fails_is_left_to_the_jobs(
    fake: FakePipeline, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_requests: object) -> None:
        raise RuntimeError("no kernel for this device")

    fake.on_denoise = cast(Any, fail)
    with Engine(fake, EngineConfig()) as engine:
        warm_up(engine, ImageOutput(None, "fake"))
    assert "the warm-up failed" in caplog.text


def test_a_model_of_sounds_warms_up_with_one_and_its_judge(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lengths: list[float | None] = []
    judge = ScriptedJudge(Action.ALLOW)
    singer = FakePipeline(spec=replace(FAKE_SOUND_SPEC, seconds=5.0))
    singer.on_decode = lambda requests: lengths.extend(params.seconds for params in requests)
    images = ImageOutput(None, "fake", sound_judge=judge)
    with Engine(singer, EngineConfig()) as engine:
        warm_up(engine, images)
        monkeypatch.setattr(module, "_LONGEST_SECONDS", 0.0)
        warm_up(engine, images)
    assert (lengths, judge.rates) == ([5.0, 1.0], [16_000, 16_000])
    assert "failed" not in caplog.text
