"""Training that was stopped gives the same; packed weights give nearly the same."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import emoji_text
from curriculum import curriculum, phase_at
from emoji_autoencoder import build
from emoji_text import Lesson, TextEncoders
from emoji_tokenizers import load_tokenizers
from emoji_walks import EmojiWalks, Studio
from loop import Stopped
from packed import pack, unpack
from pictures import Range
from support.two_things import THINGS, two_sprites

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


def test_packed_weights_are_nearly_what_they_were(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = {"matrix": torch.randn(64, 96) * torch.logspace(-3, 1, 64)[:, None], "bias": torch.randn(8)}
    weights["matrix"][0, 0] = 1.0  # far more than its row's others
    source = tmp_path / "stage.safetensors"
    save_file(weights, source, metadata={"step": "7"})
    packed = pack(source, tmp_path / "packed")
    assert packed.stat().st_size < source.stat().st_size / 3
    found = load_file(unpack(packed, tmp_path))
    assert_close(found["bias"], weights["bias"], atol=0.01, rtol=0.01)
    error = (found["matrix"] - weights["matrix"]).square().mean(1) / weights["matrix"].square().mean(1)
    assert error.max() < 0.03**2


def test_the_curriculum_only_widens() -> None:
    phases = curriculum(700)
    assert [phase.drawn.num_things for phase in phases] == sorted(phase.drawn.num_things for phase in phases)
    assert phase_at(0, 700) == phases[0]
    assert phase_at(10**9, 700).drawn.num_things == 700
    assert phase_at(10**9, 50).drawn.num_things == 50
