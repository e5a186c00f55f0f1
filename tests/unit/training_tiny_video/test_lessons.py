"""Lessons of the text encoder and of the transformer."""

import random
from pathlib import Path

import torch

from caption_encoder import TEXT_DIM, build, encode, labels_of
from choreography import NUM_TRAITS
from clip_latents import scene_of, shows_thing, true_clip
from motions import ClipScene, Direction, Motion, Thing, draw_clip_scene
from words import NUM_TOKENS, load_tokenizer


def test_scenes_that_differ_have_different_labels() -> None:
    chance = random.Random("labels")
    scenes = {draw_clip_scene(chance) for _ in range(300)}
    assert len({tuple(labels_of(scene)) for scene in scenes}) == len(scenes)


def test_padding_is_zero_after_the_encoder_and_changes_nothing(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tmp_path)
    encoder = build(tokenizer)
    short, long = "a red star grows", "a red star on a black background moves slowly from left to right"
    with torch.no_grad():
        embeddings, mask = encode(encoder, tokenizer, [short, long])
    assert embeddings.shape == (2, NUM_TOKENS, TEXT_DIM)
    assert not embeddings[mask == 0].any()
    assert embeddings[mask == 1].abs().amin(1).max() > 0


def test_tokens_are_marked_wherever_an_object_comes_by() -> None:
    scene = ClipScene(Thing("square", "red"), Motion.MOVES, Direction.RIGHT)
    marks = shows_thing(true_clip(scene, torch.zeros(NUM_TRAITS))[None])[0]
    assert marks.shape == (6, 6)
    assert marks.any(0).sum() >= 4
    assert not marks[0].any()
    assert not marks[-1].any()


def test_a_number_is_always_the_same_scene_and_never_held_out() -> None:
    scenes = [scene_of(index) for index in range(50)]
    assert scenes == [scene_of(index) for index in range(50)]
    assert not any(scene.is_held_out for scene in scenes)
