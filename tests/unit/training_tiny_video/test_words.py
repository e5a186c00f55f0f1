"""Captions of clips, and the tokenizer that reads them."""

import random
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from diffuserve.models.vocabulary import read_vocabulary
from motions import ClipScene, Direction, Motion, Speed, Thing, draw_clip_scene
from words import NUM_TOKENS, clip_caption, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    return load_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_the_plain_caption_names_every_part() -> None:
    scene = ClipScene(
        Thing("star", "red"),
        Motion.MOVES,
        Direction.RIGHT,
        Speed.SLOW,
        background="black",
        neighbor=Thing("square", "orange"),
        relation="above",
    )
    expected = "a red star on a black background moves slowly from left to right above an orange square"
    assert clip_caption(scene) == expected


def test_every_word_is_known_and_every_caption_fits(tokenizer: PreTrainedTokenizerBase) -> None:
    chance = random.Random("words")
    for _ in range(500):
        tokens = tokenizer(clip_caption(draw_clip_scene(chance), chance)).input_ids
        assert tokenizer.unk_token_id not in tokens
        assert len(tokens) <= NUM_TOKENS


def test_motions_read_differently(tokenizer: PreTrainedTokenizerBase) -> None:
    thing = Thing("star", "red")
    captions = [clip_caption(ClipScene(thing, motion)) for motion in Motion]
    assert len({tuple(tokenizer(caption).input_ids) for caption in captions}) == len(Motion)


def test_a_tokenizer_that_is_there_is_kept(tmp_path: Path) -> None:
    first = load_tokenizer(tmp_path)
    written = (tmp_path / "tokenizer.json").stat().st_mtime_ns
    assert load_tokenizer(tmp_path).get_vocab() == first.get_vocab()
    assert (tmp_path / "tokenizer.json").stat().st_mtime_ns == written


def test_the_model_declares_the_words_that_it_is_taught() -> None:
    vocabulary = read_vocabulary("tiny-video")
    assert vocabulary is not None
    chance = random.Random(1)
    captions = " ".join(clip_caption(draw_clip_scene(chance), chance) for _ in range(2_000))
    assert vocabulary.own.unknown(captions) == []
    assert vocabulary.own.unknown("a red ring falls") == ["ring"]
