"""Training that was stopped gives the same; packed weights give nearly the same."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.testing import assert_close

import emoji_refit
import emoji_text
from curriculum import curriculum, phase_at
from diffuserve.models.bundled import bundled_models
from diffuserve.models.bundled.packed_weights import unpack_weights
from emoji_autoencoder import NAME as VAE
from emoji_autoencoder import build
from emoji_checkpoint import (
    TOKENIZERS,
    adopt,
    adopt_denoiser,
    begin,
    load_averages,
    path_of,
    steps_done,
    steps_of,
)
from emoji_denoiser import NAME as DENOISER
from emoji_folder import NAME, bundle
from emoji_stages import refuse_other_words
from emoji_text import NAME as TEXT
from emoji_text import Lesson
from emoji_tokenizers import Tokenizers, load_tokenizers
from emoji_walks import EmojiWalks, Studio
from loop import Stopped
from packed import pack
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


def test_packed_weights_are_nearly_what_they_were(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = {"matrix": torch.randn(64, 96) * torch.logspace(-3, 1, 64)[:, None], "bias": torch.randn(8)}
    weights["matrix"][0, 0] = 1.0  # far more than its row's others
    packed = tmp_path / "packed" / "model" / "vae" / "weights.safetensors.xz"
    packed.parent.mkdir(parents=True)
    packed.write_bytes(pack(weights, 1 / 12, {"steps": "7"}))
    assert packed.stat().st_size < weights["matrix"].nbytes / 3
    [path] = unpack_weights(tmp_path)
    found = load_file(path)
    with safe_open(path, framework="pt") as opened:
        assert opened.metadata()["steps"] == "7"
    assert {value.dtype for value in found.values()} == {torch.bfloat16}
    assert torch.equal(found["bias"], weights["bias"].bfloat16())
    squares = (found["matrix"].float() - weights["matrix"]).square().mean(1)
    assert (squares / weights["matrix"].square().mean(1)).max() < 0.03**2


@pytest.mark.slow
def test_training_goes_on_from_the_bundled_weights(tmp_path: Path) -> None:
    """They stay what they are, however often the folder is bundled anew."""
    folder, state = bundled_models()[NAME], tmp_path / "state"
    state.mkdir()
    assert set(adopt(folder, state, dict.fromkeys((VAE, TEXT), 5))) == {VAE, TEXT}
    assert adopt(folder, state, dict.fromkeys((VAE, TEXT), 6)) == []
    assert steps_done(state, TEXT) == 5
    words = Tokenizers(state / TOKENIZERS)
    encoders = emoji_text.build(words.num_words)
    load_averages(path_of(state, TEXT), encoders.modules)
    lesson = Lesson(THINGS, two_sprites(), words, torch.device("cpu"))
    assert adopt_denoiser(folder, state, encoders, lesson)
    assert steps_done(state) == steps_of(folder) > 40_000
    assert changed_layers(folder, state) == set()
    kept = load_file(folder / "text_encoder" / "model.safetensors")
    first = next(iter(encoders.clip.parameters()))
    assert any(torch.equal(first.bfloat16(), value) for value in kept.values() if value.shape == first.shape)
    for path in bundle(folder, tmp_path, steps_of(folder)):
        assert path.stat().st_size < 3_000_000
    again = unpack_weights(tmp_path)
    [text] = [path for path in again if path.parent.name == "text_encoder"]
    for name, value in load_file(text).items():
        assert_close(value.float(), kept[name].float(), atol=0.005, rtol=0.15)


def changed_layers(folder: Path, state: Path) -> set[str]:
    [bundled] = (folder / "transformer").glob("*.safetensors")
    saved = load_file(path_of(state, DENOISER))
    return {
        name.rpartition(".")[0]
        for name, value in load_file(bundled).items()
        if not torch.equal(value.float(), saved[f"average:denoiser.{name}"])
    }


def test_a_denoiser_is_refitted_to_text_encoders_that_learned_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, state = bundled_models()[NAME], tmp_path
    monkeypatch.setattr(emoji_refit, "_NUM_CAPTIONS", 40)
    adopt(folder, state, {TEXT: 5})
    words = Tokenizers(state / TOKENIZERS)
    encoders = emoji_text.build(words.num_words)
    load_averages(path_of(state, TEXT), encoders.modules)
    encoders.t5.encoder.final_layer_norm.weight.data *= 2
    lesson = Lesson(THINGS, two_sprites(), words, torch.device("cpu"))
    assert adopt_denoiser(folder, state, encoders, lesson)
    assert changed_layers(folder, state) == {
        "context_embedder",
        "time_text_embed.text_embedder.linear_1",
    }
    assert not adopt_denoiser(folder, state, encoders, lesson)


@torch.no_grad()
def test_a_refitted_layer_makes_of_turned_vectors_what_it_made_of_the_earlier_ones() -> None:
    torch.manual_seed(0)
    layer, before = torch.nn.Linear(12, 6), torch.randn(400, 12)
    turned = before @ torch.linalg.qr(torch.randn(12, 12))[0] + 3
    wanted = layer(before)
    assert emoji_refit.solve(layer, turned, before) < 1e-6
    assert_close(layer(turned), wanted, atol=1e-2, rtol=1e-2)


def test_text_encoders_do_not_learn_on_beneath_a_denoiser(tmp_path: Path) -> None:
    for stage in (TEXT, DENOISER):
        begin(tmp_path, stage, {}, 5)
    refuse_other_words(tmp_path, 5)
    with pytest.raises(SystemExit, match="--text-steps 5"):
        refuse_other_words(tmp_path, 6)


def test_the_curriculum_only_widens() -> None:
    phases = curriculum(700)
    assert [phase.drawn.num_things for phase in phases] == sorted(phase.drawn.num_things for phase in phases)
    assert phase_at(0, 700) == phases[0]
    assert phase_at(10**9, 700).drawn.num_things == 700
    assert phase_at(10**9, 50).drawn.num_things == 50
