"""A course that was stopped ends with the weights of one that was not."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from loop import Course, Stopped, warm_then_cosine


def course(folder: Path, num_steps: int = 12) -> tuple[Course, nn.Linear]:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    optimizers = [torch.optim.Muon([layer.weight], lr=0.1), torch.optim.AdamW([layer.bias], lr=0.1)]
    folder.mkdir(exist_ok=True)
    return Course("toy", {"layer": layer}, optimizers, num_steps, warm_then_cosine, folder), layer


def train(course: Course, layer: nn.Linear, stop_at: int | None = None) -> None:
    def loss(step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        if step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        values = torch.randn(8, 4) * chance.uniform(0.5, 2)
        return (layer(values) - values.flip(1)).square().mean(), {}

    course.run(loss)


@pytest.fixture(autouse=True)
def old_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    whole, layer = course(tmp_path / "whole")
    train(whole, layer)
    stopped, other = course(tmp_path / "stopped")
    with pytest.raises(Stopped):
        train(stopped, other, stop_at=5)
    again, other = course(tmp_path / "stopped")
    assert again.step == 6
    train(again, other)
    assert_close(other.weight, layer.weight, rtol=0, atol=0)
    again.averaged()
    whole.averaged()
    assert_close(other.weight, layer.weight, rtol=0, atol=0)


def test_what_is_done_is_not_trained_again(tmp_path: Path) -> None:
    first, layer = course(tmp_path)
    train(first, layer)
    again, other = course(tmp_path)
    train(again, other, stop_at=0)
    assert_close(other.weight, layer.weight, rtol=0, atol=0)
