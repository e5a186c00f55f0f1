"""Drawings are judged where the caption puts their things."""

import torch
from einops import repeat
from torch import Tensor, nn

from compose import compose, evenly_of
from emoji_judging import verdict
from judge import Judge
from layout import NUM_TRAITS
from pictures import Item, Picture
from support.two_things import BLUE, RED, two_sprites
from things import STYLES

SIDE = 96
TRAITS = torch.full((NUM_TRAITS,), 0.7)


class Oracle(Judge):
    """Tells the two things by the color in the middle of a cut, and says 3D."""

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, cuts: Tensor) -> tuple[Tensor, Tensor]:
        middle = cuts[:, :, 14:18, 14:18].mean((2, 3))
        distances = torch.stack(
            [(middle - 2 * torch.tensor(color) + 1).abs().sum(1) for color in (RED, BLUE)], 1
        )
        return -distances, repeat(torch.tensor([1.0, 0.0]), "styles -> batch styles", batch=len(cuts))


def judged(asked: Picture, drawn: Picture) -> dict[str, bool]:
    image = compose(drawn, two_sprites(), TRAITS, SIDE, SIDE)
    return verdict(Oracle(), asked, image, evenly_of(TRAITS))


def test_a_true_picture_is_right_in_everything() -> None:
    for picture in (
        Picture((Item(1, "small", "top left"),), STYLES[0], "gray"),
        Picture((Item(0), Item(1, "small")), STYLES[0], None, "above"),
    ):
        assert all(judged(picture, picture).values())


def test_things_that_changed_places_are_wrong() -> None:
    asked = Picture((Item(0), Item(1)), "3d", "gray", "left of")
    drawn = Picture((Item(0), Item(1)), "3d", "gray", "right of")
    assert judged(asked, drawn) == {
        "background": True,
        "two: things": False,
        "two: style": True,
        "two: all": False,
    }


def test_another_background_and_style_are_seen() -> None:
    asked = Picture((Item(0),), "flat", "gray")
    parts = judged(asked, Picture((Item(0),), "3d", "green"))
    assert parts == {"background": False, "one: things": True, "one: style": False, "one: all": False}
