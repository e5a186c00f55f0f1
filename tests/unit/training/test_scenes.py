"""Scenes and the captions that ask for them."""

import random

import pytest

from scenes import COLORS, PLACES, RELATIONS, SHAPES, SIZES, Scene, Thing, caption, draw_scene


@pytest.mark.parametrize(
    ("scene", "text"),
    [
        (
            Scene((Thing("circle", "red", "large"),), "white"),
            "a large red circle on a white background",
        ),
        (
            Scene((Thing("star", "yellow", "small", "top left"),), "blue"),
            "a small yellow star at the top left on a blue background",
        ),
        (
            Scene((Thing("square", "green"), Thing("ring", "pink")), relation="left of"),
            "a green square left of a pink ring",
        ),
        (Scene((Thing("heart", "orange", place="center"),)), "an orange heart in the center"),
    ],
)
def test_plain_words(scene: Scene, text: str) -> None:
    assert caption(scene) == text


def test_every_word_of_the_vocabulary_is_drawn() -> None:
    chance = random.Random(1)
    said = " ".join(caption(draw_scene(chance)) for _ in range(2_000))
    for word in (*SHAPES, *COLORS, *SIZES, *PLACES, *RELATIONS):
        assert f" {word} " in f" {said} ", word


def test_what_is_held_out_is_never_trained_on() -> None:
    chance = random.Random(2)
    trained = {draw_scene(chance) for _ in range(3_000)}
    held_out = {draw_scene(chance, held_out=True) for _ in range(300)}
    assert not trained & held_out
    assert all(scene.is_held_out for scene in held_out)


def test_no_object_has_the_color_of_its_background() -> None:
    chance = random.Random(3)
    for _ in range(500):
        scene = draw_scene(chance)
        assert (scene.background or "white") not in {thing.color for thing in scene.things}


def test_other_words_are_used_too() -> None:
    scene = Scene((Thing("diamond", "purple", "large", "bottom right"),), "cyan")
    chance = random.Random(4)
    said = {caption(scene, chance) for _ in range(300)}
    assert len(said) > 100
    assert any("violet rhombus in the lower right corner" in caption for caption in said)
