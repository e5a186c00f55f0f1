"""Pipelines that diffusers runs, in the engine: refusals, warnings, numbers, memory and its lack."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from diffuserve.domain.errors import InvalidParams, NumericalFailure, OutOfMemory
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine_process.output.job_output import job_failure
from diffuserve.models.families.any_pipeline import arguments as words
from diffuserve.models.families.any_pipeline import pipeline
from diffuserve.models.families.any_pipeline.running import passes
from diffuserve.models.families.any_pipeline.running.call import Call
from diffuserve.models.families.any_pipeline.running.merging import run_merged
from diffuserve.models.pipelines.base import Pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.telemetry.log_config import LogConfig, LogFormat, LogLevel
from diffuserve.telemetry.logs import configure_logs
from support.any_runs import load_any
from support.tiny_pipelines import tiny_folder

SECRET = "xyzzyprompt"
WIDE = 96


def load(name: str, parent: Path, settings: str = "{}", dtype: torch.dtype = torch.float32) -> Any:
    folder = tiny_folder(name, parent)
    (folder / "diffuserve.json").write_text(settings)
    return load_any(folder, LoadPlan(torch.device("cpu"), dtype))


@pytest.fixture
def fresh(tmp_path: Path) -> Any:
    """Return a pipeline of which nothing was measured."""
    return load("sd3", tmp_path, '{"width": 64, "height": 64, "num_inference_steps": 2}')


def request(width: int = 64, seed: int = 1, steps: int = 2, prompt: str = "a cat") -> GenerationParams:
    return GenerationParams(prompt=prompt, width=width, height=64, seed=seed, num_inference_steps=steps)


def config(**values: Any) -> EngineConfig:
    return EngineConfig(num_threads=1, **values)


def is_wide(call: Call) -> bool:
    """Return whether it is a denoising pass of a wide request."""
    return call.component == "transformer" and call.arguments["hidden_states"].shape[-1] == WIDE // 8


def on_passes(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Sequence[Call], list[Any]], list[Any]]
) -> None:
    """Have `change` see each pass's calls and results."""
    monkeypatch.setattr(passes, "run_merged", lambda calls: change(calls, run_merged(calls)))


def images(results: Sequence[GenerationResult]) -> list[bytes]:
    return [result.images[0].tobytes() for result in results]


def test_a_size_that_only_the_class_refuses_is_invalid_and_not_tried_again(tmp_path: Path) -> None:
    refusing = load("sd3", tmp_path, '{"size_multiple": 8, "width": 64, "height": 64}')
    with Engine(refusing, config()) as engine:
        good, refused = engine.generate([request(), request(width=72)], return_exceptions=True)
    assert isinstance(good, GenerationResult)
    assert isinstance(refused, InvalidParams)
    assert (refused.field, refused.value) == ("width", 72)
    assert "try 64 or 80" in refused.remedy
    report = job_failure("attempt", refused)
    assert (report.code, report.retryable) == ("invalid_params", False)


def test_numbers_that_are_not_finite_fail_their_request_alone(
    small_any: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poison(calls: Sequence[Call], results: list[Any]) -> list[Any]:
        for call, result in zip(calls, results, strict=True):
            if is_wide(call):
                result[0].fill_(torch.nan)
        return results

    on_passes(monkeypatch, poison)
    with Engine(small_any, config()) as engine:
        good, bad = engine.generate([request(), request(WIDE)], return_exceptions=True)
    assert isinstance(good, GenerationResult)
    assert isinstance(bad, NumericalFailure)


def test_what_a_class_says_of_a_request_is_its_warning_and_in_no_log(
    small_any: Pipeline, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = io.StringIO()
    configure_logs(LogConfig(log_level=LogLevel.DEBUG, log_format=LogFormat.TEXT), lines)
    editor = load("qwen-image", tmp_path)

    def draw(model: Any, prompts: Sequence[str], **values: Any) -> list[GenerationResult]:
        with Engine(model, config()) as engine:
            asked = [
                GenerationParams(prompt=each, width=64, height=64, num_inference_steps=2, **values)
                for each in prompts
            ]
            return engine.generate(asked)

    with ThreadPoolExecutor(2) as threads:
        stable = threads.submit(draw, small_any, [f"{SECRET} " * 90, "a cat"])
        qwen = threads.submit(draw, editor, [SECRET], guidance_scale=1.0, negative_prompt="ugly")
    long, short = stable.result()
    assert "truncated" in " ".join(long.warnings)
    assert not short.warnings
    assert ["true_cfg_scale" in warning for warning in qwen.result()[0].warnings] == [True]
    assert SECRET not in lines.getvalue() + "".join(capfd.readouterr())


def test_a_size_that_the_class_rounds_is_told(small_any: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = words.call_arguments
    monkeypatch.setattr(pipeline, "call_arguments", lambda *of: {**asked(*of), "width": 64})
    with Engine(small_any, config()) as engine:
        result = engine.generate(request(WIDE))
    assert result.warnings == ("this model made 64x64 of the requested 96x64",)


def test_the_first_request_of_a_size_has_the_device_to_itself_and_later_ones_share(fresh: Pipeline) -> None:
    with Engine(fresh, config(token_budget=100_000)) as engine:
        engine.generate(request())
        worked = _groups(engine)
        engine.generate([request(seed=1), request(WIDE, 2), request(WIDE, 3), request(seed=4)])
    small, alone, shared = [2, 2], [1], [2, 1]
    assert [len(group) for group in worked] == small + alone + shared


def _groups(engine: Engine) -> list[Sequence[str]]:
    """Return the list to which the ids of each denoising step's requests will be added."""
    groups: list[Sequence[str]] = []
    step = engine.runner.step

    def watched(states: Any) -> Any:
        groups.append([state.request_id for state in states])
        return step(states)

    engine.runner.step = watched  # type: ignore[method-assign]
    return groups


def test_what_does_not_fit_by_measurement_is_refused_with_what_would(fresh: Pipeline) -> None:
    with Engine(fresh, config()) as engine:
        engine.generate(request())
    needed = fresh.step_bytes(fresh.spec.workload(fresh.spec.resolve(request(), 0)))
    with Engine(fresh, config(memory_budget_bytes=3 * needed)) as engine:
        with pytest.raises(InvalidParams, match=r"512x512.*would take.*try") as refused:
            engine.generate(GenerationParams(prompt="a cat", width=512, height=512))
        width, height = refused.value.remedy.split()[-1].split("x")
        engine.generate(GenerationParams(prompt="a cat", width=int(width), height=int(height)))


@pytest.fixture
def unresumed(small_any: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Return a pipeline whose requests cannot be swapped out; those of others count with their states."""
    monkeypatch.setattr(small_any, "spec", replace(small_any.spec, resumes=False))
    return small_any


def test_what_parked_runs_hold_counts_until_they_end(unresumed: Pipeline) -> None:
    with Engine(unresumed, config()) as engine:
        for seed in range(3):
            engine.add(request(seed=seed, steps=3))
        engine.step()
        limits = engine._core.budgets.limits()
        held = engine.runner.held_bytes
        assert held >= 3 * 2 * 16 * 8 * 8 * 4, "each holds its guided latents at least"
        assert limits.step_bytes <= engine._core.budgets.memory_bytes - held
        while engine.step():
            pass
        assert engine.runner.held_bytes == 0


def test_requests_are_not_encoded_ahead_where_parked_ones_fill_their_part(unresumed: Pipeline) -> None:
    probe = unresumed.step_bytes(unresumed.spec.workload(unresumed.spec.resolve(request(), 0)))
    with Engine(unresumed, config(memory_budget_bytes=2 * probe, max_batch_size=1)) as engine:
        for seed in range(12):
            engine.add(request(seed=seed))
        held = []
        while engine.step():
            held.append(engine.runner.held_bytes)
    assert max(held) < 2 * probe


@pytest.mark.parametrize("is_hopeless", [False, True])
def test_a_request_that_runs_out_of_memory_beside_others_is_tried_by_itself(
    small_any: Pipeline, monkeypatch: pytest.MonkeyPatch, is_hopeless: bool
) -> None:
    batch = [request(seed=1), request(WIDE, 2), request(seed=3)]
    with Engine(small_any, config(token_budget=100_000)) as engine:
        expected = images(engine.generate(batch))
        refused: list[int] = []

        def refuse(calls: Sequence[Call]) -> list[Any]:
            if is_wide(calls[0]) and (is_hopeless or not refused):
                refused.append(len(calls))
                raise torch.OutOfMemoryError("CUDA out of memory")
            return run_merged(calls)

        monkeypatch.setattr(passes, "run_merged", refuse)
        drawn = engine.generate(batch, return_exceptions=True)
    wide = drawn.pop(1)
    assert images([each for each in drawn if isinstance(each, GenerationResult)]) == expected[::2]
    if is_hopeless:
        assert isinstance(wide, OutOfMemory)
        assert len(refused) == 2, "beside others, and by itself"
    else:
        assert isinstance(wide, GenerationResult)
        assert images([wide]) == expected[1:2]


def test_a_step_in_which_nothing_ran_says_nothing_of_costs(
    small_any: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = words.call_arguments
    monkeypatch.setattr(pipeline, "call_arguments", lambda *of: {**asked(*of), "num_inference_steps": 2})
    with Engine(small_any, config()) as engine:
        observed: list[float] = []
        monkeypatch.setattr(
            engine.cost_model, "observe_step", lambda _workloads, seconds: observed.append(seconds)
        )
        engine.generate(request(steps=4))
    assert len(observed) == 2


def test_an_autoencoder_that_overflows_in_half_precision_computes_in_float32(tmp_path: Path) -> None:
    folder = tiny_folder("sd3", tmp_path)
    at = folder / "vae" / "config.json"
    at.write_text(at.read_text().replace('"force_upcast": false', '"force_upcast": true'))
    assert '"force_upcast": true' in at.read_text()
    loaded = load_any(folder, LoadPlan(torch.device("cpu"), torch.float16))
    vae = loaded._pipe.vae
    with Engine(loaded, config()) as engine:
        result = engine.generate(request())
    assert (vae.dtype, vae.config.force_upcast) == (torch.float32, False)
    assert result.images[0].size == (64, 64)
