"""A picture of a sound: how loud it is from its beginning to its end."""

from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw

from diffuserve.models.frames import Sound

_SIZE = (256, 96)
_INK, _PAPER = (58, 110, 165), (255, 255, 255)


def waveform(sound: Sound, size: tuple[int, int] = _SIZE) -> Image.Image:
    """Return a picture with a bar for each moment, from its lowest sample to its highest in any channel."""
    width, height = size
    picture = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(picture)
    samples, middle = np.clip(sound.samples, -1, 1), (height - 1) / 2
    edges = np.linspace(0, sound.num_samples, width + 1).astype(int)
    for column, (start, stop) in enumerate(pairwise(edges)):
        moment = samples[:, start : max(stop, start + 1)]
        top, bottom = (round(middle * (1 - float(level))) for level in (moment.max(), moment.min()))
        draw.line([(column, top), (column, bottom)], fill=_INK)
    return picture
