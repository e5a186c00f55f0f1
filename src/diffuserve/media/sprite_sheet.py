"""Sprite sheets: small frames of a clip in a grid, which players show while one scrubs."""

import math
from collections.abc import Iterable

from PIL import Image

MAX_SPRITES = 25
_LONGER_SIDE = 160  # of a cell; maximum, in pixels


class SpriteSheet:
    """A sheet of at most 25 frames of a clip, evenly spaced, row by row; the first and the last are on it.

    The grid has as many columns as the root of their number, rounded up. Frames come one after another, and
    only their small copies are kept.
    """

    def __init__(self, num_frames: int) -> None:
        """Choose from a clip of `num_frames`."""
        num_cells = min(num_frames, MAX_SPRITES)
        self._chosen = {index * (num_frames - 1) // max(num_cells - 1, 1) for index in range(num_cells)}
        self._num_seen = 0
        self._cells: list[Image.Image] = []

    @property
    def num_cells(self) -> int:
        """Number of frames on the sheet so far."""
        return len(self._cells)

    def add(self, frames: Iterable[Image.Image]) -> None:
        """Take the next frames of the clip."""
        for frame in frames:
            if self._num_seen in self._chosen:
                self._cells.append(_small(frame))
            self._num_seen += 1

    def image(self) -> Image.Image:
        """Return the sheet of the frames so far, of which there is at least one."""
        width, height = self._cells[0].size
        columns = math.ceil(math.sqrt(len(self._cells)))
        rows = math.ceil(len(self._cells) / columns)
        sheet = Image.new("RGB", (columns * width, rows * height))
        for index, cell in enumerate(self._cells):
            sheet.paste(cell, (index % columns * width, index // columns * height))
        return sheet


def _small(frame: Image.Image) -> Image.Image:
    small = frame.convert("RGB")  # a copy
    small.thumbnail((_LONGER_SIDE, _LONGER_SIDE))
    return small
