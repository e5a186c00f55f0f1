"""The checker sees what was drawn, and what is wrong with it."""

import random

import pytest
import torch

from adapter_lessons import BOTH, COLOR, SHAPE, draw_lesson
from checker import WITH_TAUGHT, Assessment, Pixels, judge
from draw import draw
from evaluate import held_out
from layout import NUM_TRAITS, place
from scenes import COLORS, SHAPES, Scene, Thing


def image(scene: Scene, seed: int = 0, side: int = 128) -> Pixels:
    traits = torch.randn(NUM_TRAITS, generator=torch.Generator().manual_seed(seed))
    drawn = draw(place(scene, traits), side, side)
    return ((drawn + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()


def test_true_drawings_are_right() -> None:
    verdicts = [judge(image(scene, seed), scene) for seed, scene in enumerate(held_out(80))]
    assert sum(assessment.everything for assessment in verdicts) >= 78


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_told_from_the_others_even_when_small(shape: str) -> None:
    scene = Scene((Thing(shape, "blue", "small", "center"),))
    verdicts = [judge(image(scene, seed), scene) for seed in range(10)]
    assert all(assessment.shape for assessment in verdicts)


@pytest.mark.parametrize("color", [color for color in COLORS if color != "gray"])
def test_every_color_is_told_from_the_others(color: str) -> None:
    scene = Scene((Thing("circle", color, "medium", "center"),), "gray")
    assert all(judge(image(scene, seed), scene).everything for seed in range(5))


def test_what_an_adapter_teaches_is_told_from_what_the_model_knows() -> None:
    chance = random.Random(0)
    lessons = [draw_lesson(chance, news, count) for news in (BOTH, COLOR, SHAPE) for count in (1, 2) * 8]
    verdicts = [judge(image(scene, seed), scene, WITH_TAUGHT) for seed, scene in enumerate(lessons)]
    assert sum(assessment.everything for assessment in verdicts) >= len(lessons) - 1
    assert not any(judge(image(scene), scene).everything for scene in lessons), (
        "the model's own judge has no word"
    )


ASKED = Scene((Thing("circle", "red", "large", "left"),), "white")


@pytest.mark.parametrize(
    ("drawn", "wrong"),
    [
        (Scene((Thing("square", "red", "large", "left"),), "white"), {"shape"}),
        (Scene((Thing("circle", "blue", "large", "left"),), "white"), {"color"}),
        (Scene((Thing("circle", "red", "medium", "left"),), "white"), {"size"}),
        (Scene((Thing("circle", "red", "large", "bottom"),), "white"), {"place"}),
        (Scene((Thing("circle", "red", "large", "left"),), "yellow"), {"background"}),
    ],
)
def test_what_is_wrong_is_named(drawn: Scene, wrong: set[str]) -> None:
    verdict = judge(image(drawn), ASKED)
    assert {name for name, right in vars(verdict).items() if not right} == wrong


def test_another_number_of_objects_is_wrong_altogether() -> None:
    two = Scene((Thing("circle", "red"), Thing("circle", "red")), "white", "left of")
    assert judge(image(two), ASKED) == Assessment(background=True, count=False)


def test_a_relation_the_wrong_way_round_is_seen() -> None:
    things = (Thing("star", "red"), Thing("ring", "blue"))
    drawn, asked = Scene(things, "white", "right of"), Scene(things, "white", "left of")
    verdict = judge(image(drawn), asked)
    assert verdict.color
    assert not verdict.place


def test_a_flat_image_shows_nothing() -> None:
    chance = random.Random(0)
    flat = torch.full((128, 128, 3), chance.randrange(256), dtype=torch.uint8).numpy()
    assert not judge(flat, ASKED).count
