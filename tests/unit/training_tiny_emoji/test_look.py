"""The third look is gold, of the thing's own shape, and darker where the thing is darker."""

import torch

from look import NAME, gilded
from look_judging import both_looks
from sprites import Sprites
from support.two_things import two_sprites
from things import STYLES


def gray(brightness: float, opacity: float) -> Sprites:
    pixels = torch.full((1, 4, 2, 2), opacity)
    pixels[:, :3] *= brightness
    return Sprites(dict.fromkeys(STYLES, (255 * pixels).round().to(torch.uint8)))


def test_gold_goes_from_dark_to_light_with_the_brightness() -> None:
    cast = [gilded(gray(brightness, 1.0)).pixels["3d"][0, :3, 0, 0] for brightness in (0.0, 0.5, 1.0)]
    assert torch.stack(cast).diff(dim=0).gt(0).all()
    for red, green, blue in (color.tolist() for color in cast):
        assert red > green > blue


def test_what_is_half_transparent_stays_so() -> None:
    whole, half = (gilded(gray(0.6, opacity)).pixels["flat"][0, :, 0, 0].float() for opacity in (1.0, 0.5))
    assert torch.allclose(half, whole / 2, atol=2)
    assert gilded(gray(1.0, 0.0)).pixels["flat"].max() == 0


def test_the_judge_learns_each_style_as_published_and_in_gold() -> None:
    looks = both_looks(two_sprites())
    assert looks.styles == (*STYLES, *(f"{NAME} {style}" for style in STYLES))
    assert looks.num_things == 2
