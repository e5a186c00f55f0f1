"""Runs park at their models' calls, go on with what they are given, and end where they are ended."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from diffuserve.models.families.any_pipeline.running.hooks import hook_models
from diffuserve.models.families.any_pipeline.running.passes import Passes, Sharing
from diffuserve.models.families.any_pipeline.running.run import Run
from diffuserve.models.families.any_pipeline.running.steps_told import StepsTold


class Doubler(nn.Module):
    """A denoiser of one operation, which fails for negative numbers."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if bool((hidden_states < 0).any()):
            raise ArithmeticError("a negative number")
        return 2 * hidden_states


class Pipe:
    """Doubles a number as often as it has steps, and says when it is unwound."""

    def __init__(self) -> None:
        self.transformer = Doubler()
        hook_models({"transformer": self.transformer})
        self.unwound: list[float] = []

    def run(self, value: float, num_steps: int = 3) -> Run:
        steps = StepsTold(num_steps)

        def generate() -> float:
            latents = torch.tensor([[value]])
            try:
                with steps.progress_bar(total=num_steps) as bar:
                    for _ in range(num_steps):
                        latents = self.transformer(latents)
                        bar.update()
                return float(latents)
            finally:
                self.unwound.append(value)

        return Run(generate, threading.Lock(), steps)


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


def lead(
    runs: list[Run], goal: Callable[[Run], bool] = lambda _run: False
) -> tuple[dict[Run, Exception], list[int]]:
    rows: list[int] = []
    failures = Passes(Sharing.ALL, on_pass=lambda _name, count: rows.append(count)).lead(runs, goal)
    return failures, rows


def test_runs_at_different_steps_share_passes_and_each_has_its_own_result(pipe: Pipe) -> None:
    runs = [pipe.run(1.0, 2), pipe.run(10.0, 3)]
    lead(runs[1:], lambda run: run.steps.has_done(0, 3))
    failures, rows = lead(runs)
    assert failures == {}
    assert [run.result for run in runs] == [4.0, 80.0]
    assert rows == [2, 2]


def test_a_run_goes_on_no_further_than_its_goal(pipe: Pipe) -> None:
    run = pipe.run(1.0, 4)
    for index, expected in enumerate((1, 2, 3)):
        lead([run], lambda run, index=index: run.steps.has_done(index, 4))  # type: ignore[misc]
        assert run.num_calls == expected + 1
    run.close()


def test_a_failed_call_stays_parked_and_can_be_tried_again_and_its_neighbor_goes_on(pipe: Pipe) -> None:
    good, bad = pipe.run(1.0), pipe.run(-1.0)
    failures, _ = lead([good, bad])
    assert good.result == 8.0
    assert isinstance(failures[bad], ArithmeticError)
    assert not bad.ended
    again, _ = lead([bad])
    assert isinstance(again[bad], ArithmeticError)
    bad.close()
    assert pipe.unwound == [1.0, -1.0]


def test_a_run_that_fails_in_its_own_lines_has_ended(pipe: Pipe) -> None:
    def refuse() -> Any:
        raise ValueError("no such size")

    run = Run(refuse, threading.Lock(), StepsTold(1))
    failures, _ = lead([run])
    assert str(failures[run]) == "no such size"
    assert run.ended


def test_closing_unwinds_a_run_and_ends_its_thread(pipe: Pipe) -> None:
    before = threading.active_count()
    parked, unstarted, ended = pipe.run(1.0), pipe.run(2.0), pipe.run(3.0)
    parked.resume()
    lead([ended])
    for run in (parked, unstarted, ended):
        run.close()
        run.close()
    assert pipe.unwound == [3.0, 1.0]
    assert threading.active_count() == before


def test_calls_of_other_threads_go_through(pipe: Pipe) -> None:
    assert float(pipe.transformer(torch.tensor([[2.0]]))) == 4.0


def test_what_a_run_draws_without_a_generator_follows_from_its_seed_alone() -> None:
    def drawn(seed: int) -> Run:
        def generate() -> list[float]:
            steps.progress_bar(total=2)
            first = float(torch.randn(()))
            transformer(torch.ones(1, 1))
            return [first, float(torch.randn(()))]

        steps = StepsTold(2)
        return Run(generate, threading.Lock(), steps, seed=seed)

    transformer = Doubler()
    hook_models({"transformer": transformer})
    before = torch.get_rng_state()
    runs = [drawn(1), drawn(2), drawn(1)]
    lead(runs)
    assert torch.equal(torch.get_rng_state(), before)
    generator = torch.Generator().manual_seed(1)
    expected = [float(torch.randn((), generator=generator)) for _ in range(2)]
    assert runs[0].result == runs[2].result == expected
    assert runs[1].result != expected
