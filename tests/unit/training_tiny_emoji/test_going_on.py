"""Training that was stopped gives the same; packed weights give nearly the same."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import emoji_text
from curriculum import curriculum, phase_at
from emoji_autoencoder import build
from emoji_checkpoint import TOKENIZERS, adopt, export
from emoji_text import Lesson
from emoji_tokenizers import Tokenizers, load_tokenizers
from emoji_walks import EmojiWalks, Studio
from loop import Course, Stopped, warm_then_cosine
from packed import pack, unpack
from pictures import Range
from support.two_things import THINGS, two_sprites
from text_encoders import TextEncoders

SIZE = (32, 32)


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    tokenize = load_tokenizers(tmp_path_factory.mktemp("tokenizers"), THINGS)
    return Lesson(THINGS, two_sprites(), tokenize, torch.device("cpu"))


@pytest.fixture(autouse=True)
def old_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def taught(folder: Path, lesson: Lesson) -> TextEncoders:
    folder.mkdir(exist_ok=True)
    return emoji_text.train(folder, 4, lesson)


@pytest.mark.slow
def test_text_encoders_end_the_same_however_often_they_were_stopped(
    tmp_path: Path, lesson: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = taught(tmp_path / "whole", lesson)
    labels_of, calls = emoji_text.labels_of, iter(range(10**6))

    def stop_in_the_second_step(*arguments: object) -> list[int]:
        if next(calls) == emoji_text._BATCH + 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return labels_of(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(emoji_text, "labels_of", stop_in_the_second_step)
    with pytest.raises(Stopped):
        taught(tmp_path / "parts", lesson)
    monkeypatch.undo()
    parts = taught(tmp_path / "parts", lesson)
    for name, module in whole.modules.items():
        others = dict(parts.modules[name].named_parameters())
        assert all(torch.equal(value, others[key]) for key, value in module.named_parameters())


def test_walks_arrive_at_the_picture_when_the_network_knows_the_way(lesson: Lesson) -> None:
    encoders = emoji_text.build(lesson.tokenize.num_words)
    walks = EmojiWalks(Studio(build(), encoders, lesson), SIZE, 6)
    torch.manual_seed(0)
    chance = random.Random(0)
    for _ in range(20):
        walks.begin(Range(2, 0.5), chance)
        assert (walks.left > 0).all()
        walks.advance(walks.velocity)
        arrived = walks.left == 0
        assert_close(walks.noisy[arrived], walks.batch.clean[arrived], atol=1e-4, rtol=1e-4)


def test_packed_weights_are_nearly_what_they_were() -> None:
    torch.manual_seed(0)
    weights = {"matrix": torch.randn(64, 96) * torch.logspace(-3, 1, 64)[:, None], "bias": torch.randn(8)}
    weights["matrix"][0, 0] = 1.0  # far more than its row's others
    packed = pack(weights)
    assert len(packed) < weights["matrix"].nbytes / 3
    found = unpack(packed)
    assert_close(found["bias"], weights["bias"], atol=0.01, rtol=0.01)
    error = (found["matrix"] - weights["matrix"]).square().mean(1) / weights["matrix"].square().mean(1)
    assert error.max() < 0.03**2


def test_a_checkpoint_goes_on_at_its_step_with_its_tokenizers(tmp_path: Path) -> None:
    state, fresh = tmp_path / "state", tmp_path / "fresh"
    tokenize = load_tokenizers(state / TOKENIZERS, THINGS)
    course = small_course(state)
    course.step = 7
    course.save()
    fresh.mkdir()
    export(state, tmp_path / "checkpoint")
    assert adopt(tmp_path / "checkpoint", fresh) == ["small"]
    assert adopt(tmp_path / "checkpoint", fresh) == []
    resumed = small_course(fresh)
    assert resumed.step == 7
    assert_close(resumed.modules["layer"].weight, course.modules["layer"].weight, atol=0.01, rtol=0.01)
    captions = ["a small disc, flat"]
    for mine, others in zip(Tokenizers(fresh / TOKENIZERS)(captions), tokenize(captions), strict=True):
        assert torch.equal(mine, others)


def small_course(folder: Path) -> Course:
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters())
    return Course("small", {"layer": layer}, [optimizer], 12, warm_then_cosine, folder)


def test_the_curriculum_only_widens() -> None:
    phases = curriculum(700)
    assert [phase.drawn.num_things for phase in phases] == sorted(phase.drawn.num_things for phase in phases)
    assert phase_at(0, 700) == phases[0]
    assert phase_at(10**9, 700).drawn.num_things == 700
    assert phase_at(10**9, 50).drawn.num_things == 50
