"""Contact sheets: a grid of images with captions, as one image."""

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from diffuserve.media.transparency import flattened

_CELL, _MARGIN, _CAPTION, _LINE = 264, 16, 58, 18
_PAPER, _INK = (250, 250, 248), (40, 40, 40)
_FONT_SIZE = 14


def contact_sheet(images: Sequence[tuple[Image.Image, str]], columns: int | None = None) -> Image.Image:
    """Return a sheet of images of any size with their captions, row by row.

    Large images are shrunk to their cell; small ones are enlarged by whole factors. Without `columns` the
    sheet is about square, with at most 4 columns.
    """
    columns = columns or min(4, math.ceil(math.sqrt(len(images))))
    rows = math.ceil(len(images) / columns)
    size = (columns * (_CELL + _MARGIN) + _MARGIN, rows * (_CELL + _CAPTION + _MARGIN) + _MARGIN)
    sheet = Image.new("RGB", size, _PAPER)
    for index, (image, caption) in enumerate(images):
        left = _MARGIN + index % columns * (_CELL + _MARGIN)
        top = _MARGIN + index // columns * (_CELL + _CAPTION + _MARGIN)
        _place(sheet, image, left, top)
        _write(sheet, caption, left, top + _CELL + 6)
    return sheet


def _place(sheet: Image.Image, image: Image.Image, left: int, top: int) -> None:
    """Paste the image into the middle of the cell, as large as it fits."""
    factor = _CELL / max(image.size)
    factor = max(1, math.floor(factor)) if factor >= 1 else factor
    scaled = flattened(image).resize(
        (round(image.width * factor), round(image.height * factor)),
        Image.Resampling.LANCZOS,
    )
    sheet.paste(scaled, (left + (_CELL - scaled.width) // 2, top + (_CELL - scaled.height) // 2))


def _write(sheet: Image.Image, caption: str, left: int, top: int) -> None:
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(_FONT_SIZE)
    line, lines = "", []
    for word in caption.split():
        longer = f"{line} {word}".strip()
        if draw.textlength(longer, font) > _CELL and line:
            lines.append(line)
            longer = word
        line = longer
    for number, text in enumerate([*lines, line][: _CAPTION // _LINE]):
        draw.text((left, top + number * _LINE), text, _INK, font)
