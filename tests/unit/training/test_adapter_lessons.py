"""What the adapter of tiny-flux is taught: new things among known ones, and none that are held out."""

import random

import pytest

from adapter_lessons import BACKGROUND, BOTH, COLOR, NOTHING, SHAPE, draw_lesson, lesson_of
from scenes import TAUGHT_COLORS, TAUGHT_SHAPES, Scene


def news_of(scene: Scene) -> tuple[bool, bool, bool]:
    """Return whether an object's color, an object's shape and the background are new."""
    return (
        any(thing.color in TAUGHT_COLORS for thing in scene.things),
        any(thing.shape in TAUGHT_SHAPES for thing in scene.things),
        scene.background in TAUGHT_COLORS,
    )


@pytest.mark.parametrize("num_things", [1, 2])
@pytest.mark.parametrize(
    ("news", "expected"),
    [
        (BOTH, (True, True, False)),
        (COLOR, (True, False, False)),
        (SHAPE, (False, True, False)),
        (BACKGROUND, (False, False, True)),
        (NOTHING, (False, False, False)),
    ],
)
def test_a_lesson_has_what_it_teaches(news: str, expected: tuple[bool, ...], num_things: int) -> None:
    for held_out in (False, True):
        scene = draw_lesson(random.Random(1), news, num_things, held_out)
        assert (news_of(scene), len(scene.things), scene.is_held_out) == (expected, num_things, held_out)


def test_every_number_is_a_lesson_that_is_not_held_out() -> None:
    lessons = [lesson_of(number) for number in range(200)]
    assert lessons[:5] == [lesson_of(number) for number in range(5)]
    assert not any(scene.is_held_out for scene in lessons)
    assert 20 <= sum(not any(news_of(scene)) for scene in lessons) <= 50
