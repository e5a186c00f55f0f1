"""Running requests through an engine with live progress."""

import io
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from diffuserve.cli.display.console import Console
from diffuserve.cli.draw.run import run_requests, tell_ahead
from diffuserve.domain.errors import RequestFailed
from diffuserve.domain.models.cost import CostEstimate
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.models.registry import read_spec
from diffuserve.testing.fake_pipeline import FakePipeline

REQUESTS = [
    GenerationParams(prompt=prompt, width=16, height=16, seed=1) for prompt in ("red", "green", "blue")
]


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), width=120)


@pytest.fixture
def engine(fake: FakePipeline) -> Iterator[Engine]:
    """An engine that generates one image after the other."""
    with Engine(fake, EngineConfig(token_budget=1, num_threads=1)) as engine:
        yield engine


def keep(index: int, result: GenerationResult) -> GenerationResult:
    return result


def test_results_keep_the_order_of_their_requests(fake_engine: Engine, screen: Console) -> None:
    run = run_requests(fake_engine, REQUESTS, screen, keep)
    assert [result.params.prompt for result in run.finished] == ["red", "green", "blue"]
    assert run.errors == {}
    assert not run.interrupted


def test_each_result_is_handed_on_with_its_index(fake_engine: Engine, screen: Console) -> None:
    handed: dict[int, str] = {}

    def save(index: int, result: GenerationResult) -> GenerationResult:
        handed[index] = result.params.prompt
        return result

    run_requests(fake_engine, REQUESTS, screen, save)
    assert handed == {0: "red", 1: "green", 2: "blue"}


@pytest.mark.parametrize(("seconds", "is_told"), [(60.0, True), (0.1, False)])
def test_a_long_run_is_foretold_and_a_size_warned_of_before_it(
    seconds: float, is_told: bool, screen: Console
) -> None:
    engine = SimpleNamespace(
        spec=read_spec("tiny-flux"), estimate=lambda _params: CostEstimate(0.0, seconds, 0.0)
    )
    requests = [GenerationParams(prompt=prompt, width=512, height=512) for prompt in ("red", "blue")]
    [warning] = tell_ahead(cast("Engine", engine), requests, screen)
    told = cast("io.StringIO", screen.file).getvalue()
    assert told.count("has learned images of 96 to 256") == 1
    assert "512x512" in warning
    assert ("about 120 s" in told) is is_told


def test_a_request_that_fails_leaves_the_others(fake: FakePipeline, engine: Engine, screen: Console) -> None:
    def fail_green(params: Sequence[GenerationParams]) -> None:
        if any(request.prompt == "green" for request in params):
            raise RuntimeError("no green today")

    fake.on_denoise = fail_green
    run = run_requests(engine, REQUESTS, screen, keep)
    assert sorted(run.results) == [0, 2]
    assert "no green today" in str(run.errors[1])


def test_a_result_that_cannot_be_saved_counts_as_failed(fake_engine: Engine, screen: Console) -> None:
    def refuse(index: int, result: GenerationResult) -> GenerationResult:
        if index == 1:
            raise RequestFailed(result.request_id, "blocked")
        return result

    run = run_requests(fake_engine, REQUESTS, screen, refuse)
    assert sorted(run.results) == [0, 2]
    assert "blocked" in str(run.errors[1])


def test_ctrl_c_keeps_the_images_that_are_done(fake: FakePipeline, engine: Engine, screen: Console) -> None:
    def interrupt_at_blue(params: Sequence[GenerationParams]) -> None:
        if any(request.prompt == "blue" for request in params):
            raise KeyboardInterrupt

    fake.on_encode = interrupt_at_blue
    run = run_requests(engine, REQUESTS, screen, keep)
    assert run.interrupted
    assert 2 not in run.results


def test_progress_shows_prompts_without_markup(fake_engine: Engine) -> None:
    output = io.StringIO()
    prompt = "a [red] star\n" + "very " * 20
    run_requests(
        fake_engine, [GenerationParams(prompt=prompt, seed=1)], Console(file=output, width=120), keep
    )
    assert "a [red] star very" in output.getvalue()
    assert "…" in output.getvalue()
    assert "done" in output.getvalue()
