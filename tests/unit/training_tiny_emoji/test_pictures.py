"""Pictures are composed as their captions say; of two made-up things, no published set is needed."""

import random

import pytest
import torch
from torch import Tensor

from compose import compose, paste
from layout import NUM_TRAITS
from pictures import BACKGROUNDS, Item, Picture, Range, caption, draw_picture, vocabulary
from support.two_things import BLUE, RED, THINGS, two_sprites

SIDE = 96


def drawn(picture: Picture, width: int = SIDE, height: int = SIDE) -> Tensor:
    torch.manual_seed(1)
    return compose(picture, two_sprites(), torch.randn(NUM_TRAITS), width, height)


def shown(image: Tensor, color: tuple[float, ...], brightness: float = 1.0) -> Tensor:
    """Return where `(height, width)` the image shows this color."""
    wanted = torch.tensor(color)[:, None, None] * brightness * 2 - 1
    return (image - wanted).abs().amax(0) < 0.05


def center(where: Tensor) -> tuple[float, float]:
    rows, columns = where.nonzero().float().mean(0).tolist()
    return columns, rows


@pytest.mark.parametrize(
    ("relation", "axis", "sign"), [("left of", 0, -1), ("above", 1, -1), ("below", 1, 1)]
)
def test_the_first_of_two_things_stands_where_the_caption_says(relation: str, axis: int, sign: int) -> None:
    image = drawn(Picture((Item(0), Item(1)), "3d", "green", relation))
    red, blue = center(shown(image, RED)), center(shown(image, BLUE))
    assert sign * (red[axis] - blue[axis]) > SIDE / 3


@pytest.mark.parametrize(
    ("place", "column", "row"), [("top left", 0, 0), ("right", 1, 0.5), ("bottom", 0.5, 1)]
)
def test_a_thing_is_at_its_place_in_every_shape_of_picture(place: str, column: float, row: float) -> None:
    for width, height in ((96, 96), (160, 96), (96, 192)):
        x, y = center(shown(drawn(Picture((Item(0, "small", place),), "3d"), width, height), RED))
        assert round(2 * x / width - 0.01) / 2 == column
        assert round(2 * y / height - 0.01) / 2 == row


def test_sizes_and_styles_are_seen() -> None:
    sizes = [
        int(shown(drawn(Picture((Item(0, size),), "3d")), RED).sum()) for size in ("small", "medium", "large")
    ]
    assert sizes[0] * 2 < sizes[1] < sizes[2] / 2
    assert shown(drawn(Picture((Item(0),), "flat")), RED, brightness=0.5).any()


def test_what_lies_outside_is_cut_off() -> None:
    image, sprite = torch.zeros(3, 8, 8), torch.ones(4, 6, 6)
    paste(image, sprite, -3, 5)
    assert image[0].sum() == 9
    paste(image, sprite, 20, 20)
    assert image[0].sum() == 9


def test_captions_say_everything_once() -> None:
    picture = Picture((Item(0, "small"), Item(1, "large")), "flat", "blue", "left of")
    assert caption(picture, THINGS) == "a small disc left of a large box, flat, on a blue background"


def test_every_caption_names_its_things_and_only_its_style() -> None:
    chance = random.Random(0)
    for _ in range(500):
        picture = draw_picture(chance, Range(2, 0.5))
        said = caption(picture, THINGS, chance)
        assert all(any(name in said for name in THINGS[item.thing].names) for item in picture.items)
        others = {"3d": ("flat", "2d"), "flat": ("3d", "rendered")}[picture.style]
        assert not set(others) & set(said.replace(",", " ").split()), said


def test_held_out_pictures_are_never_drawn_for_training() -> None:
    chance = random.Random(0)
    assert all(not draw_picture(chance, Range(2, 0.5)).is_held_out for _ in range(300))
    assert draw_picture(chance, Range(2, 0.5), held_out=True).is_held_out


def test_the_vocabulary_holds_all_words_but_made_up_ones() -> None:
    words = vocabulary(THINGS)
    assert {"coin", "box", "3d", "flat", "rendered", "left", "corner", *BACKGROUNDS} <= set(words)
    assert len(words) < 120
    assert words == vocabulary(THINGS)
