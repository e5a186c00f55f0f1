"""Images count as refused or as asked for by what is seen on them."""

import numpy as np
import torch

from checker import Pixels
from draw import draw
from evaluate_sd import COLOR_OF_A_SHAPE, SHAPE_OF_A_COLOR, Refusal, refusal_row
from layout import Layout, Placed
from scenes import COLORS


def drawing(*things: tuple[str, str]) -> Pixels:
    placed = [
        Placed(shape, 0.25 + 0.5 * number, 0.5, 0.2, (float(red), float(green), float(blue)))
        for number, (shape, color) in enumerate(things)
        for red, green, blue in [COLORS[color]]
    ]
    image = draw(Layout(tuple(placed), (255.0, 255.0, 255.0)), 128, 128)
    pixels: Pixels = ((image + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return np.ascontiguousarray(pixels)


def test_each_image_counts_for_what_it_shows() -> None:
    no_red = Refusal("a heart", "red", color="red")
    images = [
        drawing(("heart", "red")),
        drawing(("heart", "blue")),
        drawing(("star", "blue"), ("ring", "red")),
    ]
    row = refusal_row(images, [no_red] * 3)
    assert row == {"one object": 66.7, "asked for": 66.7, "refused": 66.7}
    no_heart = Refusal("something red", "heart", shape="heart")
    row = refusal_row(images[:2], [no_heart] * 2)
    assert row == {"one object": 100.0, "asked for": 50.0, "refused": 100.0}


def test_every_habit_is_refused_once_each_way() -> None:
    assert {case.color for case in COLOR_OF_A_SHAPE} == {case.prompt.split()[-1] for case in SHAPE_OF_A_COLOR}
    assert {case.shape for case in SHAPE_OF_A_COLOR} == {case.prompt.split()[-1] for case in COLOR_OF_A_SHAPE}
