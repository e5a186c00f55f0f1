"""`diffuserve calibrate`, with a real engine that runs a fake pipeline."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from diffuserve.cli.display.console import Console
from diffuserve.cli.draw import calibrate as module
from diffuserve.cli.draw.calibrate import sweep
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.engine.engine import Engine
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.settings import Settings, cost_fit_path
from diffuserve.testing.fake_pipeline import FAKE_SOUND_SPEC, FAKE_SPEC, FakePipeline
from support.command import Invoke

SPEC = ModelSpec(
    name="m",
    family="f",
    width=128,
    height=96,
    num_inference_steps=4,
    max_sequence_length=32,
    longest_sequence_length=32,
    max_size=160,
)


def test_calibration_stays_within_the_limits_of_the_model() -> None:
    requests = sweep(SPEC)
    assert requests
    for request in requests:
        SPEC.resolve(request, seed=0)


def test_calibration_of_sounds_measures_several_lengths() -> None:
    requests = [FAKE_SOUND_SPEC.resolve(request, seed=0) for request in sweep(FAKE_SOUND_SPEC)]
    assert len({request.seconds for request in requests}) >= 3


def test_calibration_measures_several_sizes_and_steps() -> None:
    requests = sweep(SPEC)
    assert len({(request.width, request.height) for request in requests}) >= 3
    assert {request.num_inference_steps for request in requests} == {1, 2, 4}


def test_sizes_above_the_models_pixels_are_left_out() -> None:
    limited = replace(SPEC, max_pixels=128 * 96)
    assert len(sweep(limited)) < len(sweep(SPEC))
    for request in sweep(limited):
        limited.resolve(request, seed=0)


@pytest.fixture
def loaded(fake: FakePipeline, monkeypatch: pytest.MonkeyPatch) -> list[EngineProcessConfig]:
    configs: list[EngineProcessConfig] = []

    def load(config: EngineProcessConfig, console: Console) -> Engine:
        configs.append(config)
        return Engine(fake, config.engine)

    monkeypatch.setattr("diffuserve.cli.preflight.check_requests", lambda *_: None)
    monkeypatch.setattr(module, "load_engine", load)
    monkeypatch.setattr(module, "_ROUNDS", 1)
    return configs


def test_the_fit_is_kept_for_this_model_and_device(
    invoke: Invoke, loaded: list[EngineProcessConfig], fake: FakePipeline
) -> None:
    done = invoke("calibrate", "--model", "m", "--device", "cpu")
    assert done.code == 0
    path = cost_fit_path(Settings().cache_dir, "m", "cpu", None)
    if path.is_file():
        assert path == Path("".join(done.out.removeprefix("kept in ").split()))
    else:  # the machine of this test was busy
        assert "not kept" in done.err
    measured = {
        (request.width, request.num_inference_steps) for batch in fake.denoised_batches for request in batch
    }
    assert measured == {(request.width, request.num_inference_steps) for request in sweep(FAKE_SPEC)}


def test_measured_times_stand_beside_predicted_ones(invoke: Invoke, loaded: object) -> None:
    rows = invoke("calibrate").err.splitlines()
    [heading] = [row for row in rows if "predicted s" in row]
    table = rows[rows.index(heading) + 1 :]
    measured = [row for row in table if re.match(r"\s*\d+x\d+ ", row)]  # others warn of a busy machine
    assert len(measured) == len(sweep(FAKE_SPEC))


@pytest.mark.parametrize("choice", [("a/b", "cpu", None), ("a/b", None, "float32"), ("a", None, None)])
def test_each_choice_of_model_device_and_dtype_has_its_own_fit(
    choice: tuple[str, str | None, str | None], tmp_path: Path
) -> None:
    assert cost_fit_path(tmp_path, *choice) != cost_fit_path(tmp_path, "a/b", None, None)
    assert cost_fit_path(tmp_path, *choice).parent == tmp_path / "cost_fit"
