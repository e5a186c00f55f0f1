"""Previews that people can look at."""

import pytest
from PIL import Image

from diffuserve.media.preview import enlarged


@pytest.mark.parametrize(
    ("size", "enlarged_size"),
    [
        ((16, 16), (128, 128)),
        ((24, 16), (144, 96)),
        ((128, 96), (128, 96)),
        ((170, 96), (170, 96)),
        ((60, 12), (360, 72)),
        ((16, 60), (64, 240)),
        ((252, 12), (1008, 48)),
        ((2184, 60), (2184, 60)),
    ],
)
def test_a_small_preview_is_enlarged_by_a_whole_factor(
    size: tuple[int, int], enlarged_size: tuple[int, int]
) -> None:
    assert enlarged(Image.new("RGB", size)).size == enlarged_size
