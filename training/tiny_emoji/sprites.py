"""The pictures of all things in both styles, cut out and ready to be put anywhere."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from emoji_packages import PICTURES_3D, PICTURES_FLAT, Package, members
from things import STYLES, Thing

SIDES = {"3d": 128, "flat": 64}
"""Pixels that are kept of each style; the flat set is published no larger."""
_SOURCES: dict[str, tuple[Package, str]] = {
    "3d": (PICTURES_3D, "assets"),
    "flat": (PICTURES_FLAT, "img/google/64"),
}


@dataclass(frozen=True)
class Sprites:
    """Pictures in each style, `(things, 4, side, side)` bytes: colors times opacity, and opacity."""

    pixels: dict[str, Tensor]

    @property
    def styles(self) -> tuple[str, ...]:
        return tuple(sorted(self.pixels))

    @property
    def num_things(self) -> int:
        return len(self.pixels[self.styles[0]])

    def sized(self, thing: int, style: str, side: int) -> Tensor:
        """Return one picture as floats `(4, side, side)` in 0…1."""
        pixels = self.pixels[style][thing : thing + 1].float() / 255
        resized: Tensor = functional.interpolate(
            pixels, size=(side, side), mode="bilinear", antialias=True, align_corners=False
        )
        return resized[0]


def load_sprites(things: Sequence[Thing], packages: Path, state: Path) -> Sprites:
    """Return the pictures of all things, made once from the packages and stored in `state`."""
    path = state / f"sprites-{len(things)}.safetensors"
    if not path.exists():
        save_file({style: _read(style, things, packages) for style in STYLES}, path)
    return Sprites(load_file(path))


def drawn_things(things: Sequence[Thing], packages: Path) -> tuple[Thing, ...]:
    """Return the things that both sets have a picture of."""
    codes = [
        {_code(name) for name, _ in members(package, packages, under)} for package, under in _SOURCES.values()
    ]
    return tuple(thing for thing in things if all(_code(thing.code) in held for held in codes))


def _read(style: str, things: Sequence[Thing], packages: Path) -> Tensor:
    package, under = _SOURCES[style]
    wanted = {_code(thing.code): number for number, thing in enumerate(things)}
    side = SIDES[style]
    pixels = torch.zeros(len(things), 4, side, side, dtype=torch.uint8)
    for name, content in members(package, packages, under):
        number = wanted.pop(_code(name), None)
        if number is not None:
            pixels[number] = cut_out(Image.open(io.BytesIO(content)), side)
    if wanted:
        raise ValueError(f"{package.name} has no picture of {', '.join(sorted(wanted))}")
    return pixels


def cut_out(image: Image.Image, side: int) -> Tensor:
    """Return the visible part, in the middle of a square `(4, side, side)`, premultiplied."""
    image = image.convert("RGBA")
    box = image.getchannel("A").point(lambda opacity: 255 * (opacity > 8)).getbbox()
    assert box is not None, "a picture of nothing"
    longer = max(box[2] - box[0], box[3] - box[1])
    square = Image.new("RGBa", (longer, longer))
    seen = image.convert("RGBa").crop(box)
    square.paste(seen, ((longer - seen.width) // 2, (longer - seen.height) // 2))
    pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1)[None].float()
    resized = functional.interpolate(pixels, size=(side, side), mode="bilinear", antialias=True)
    return resized[0].round().to(torch.uint8)


def _code(name: str) -> str:
    """Return the characters' numbers as both sets can be compared: without the mark for "in color"."""
    return name.partition(".")[0].replace("-fe0f", "")
