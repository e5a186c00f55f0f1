"""Sprite sheets: frames of a clip in one image."""

from itertools import pairwise

import pytest
from PIL import Image

from diffuserve.media.sprite_sheet import MAX_SPRITES, SpriteSheet


def _frames(num_frames: int, size: tuple[int, int] = (64, 32)) -> list[Image.Image]:
    return [Image.new("RGB", size, (number, 0, 0)) for number in range(num_frames)]


@pytest.mark.parametrize(
    ("num_frames", "num_cells", "grid"),
    [(1, 1, (1, 1)), (2, 2, (2, 1)), (5, 5, (3, 2)), (17, 17, (5, 4)), (81, MAX_SPRITES, (5, 5))],
)
def test_a_sheet_shows_evenly_spaced_frames(num_frames: int, num_cells: int, grid: tuple[int, int]) -> None:
    sheet = SpriteSheet(num_frames)
    sheet.add(_frames(num_frames))
    image = sheet.image()
    assert (sheet.num_cells, image.size) == (num_cells, (grid[0] * 64, grid[1] * 32))
    cells = [
        image.getpixel((index % grid[0] * 64, index // grid[0] * 32))[0]  # type: ignore[index]
        for index in range(num_cells)
    ]
    assert (cells[0], cells[-1]) == (0, num_frames - 1)
    gaps = [later - earlier for earlier, later in pairwise(cells)]
    assert max(gaps, default=1) - min(gaps, default=1) <= 1


def test_frames_are_shrunk_and_stay_as_they_are() -> None:
    frames = _frames(3, (832, 480))
    sheet = SpriteSheet(3)
    for frame in frames:
        sheet.add([frame])
    assert sheet.image().size == (2 * 160, 2 * 92)
    assert frames[0].size == (832, 480)
