"""Pictures as they are asked for: things put on a background, as the seed settles it.

As in tiny-flux, what a caption leaves open is read off the starting noise (`layout`), so that the network
learns a function of caption and noise.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pictures import Item, Picture
from scenes import COLORS, PLACES, RELATIONS
from sprites import Sprites

_RADII = {"small": 0.15, "medium": 0.24, "large": 0.36}
"""Half the side of a single thing, in units of the picture's shorter side."""
_PAIR_RADII = {"small": 0.13, "medium": 0.17, "large": 0.22}
_UNSAID = {1: 0.33, 2: 0.2}
"""The same where the caption says none, by the number of things."""
_SIZE_SPREAD = 0.06
_PLACE_SPREAD = 0.05
_OPEN_PLACE_SPREAD = 0.12
_MARGIN = 0.02
_SHADE = 10.0  # of 255


@dataclass(frozen=True)
class Spot:
    """Center and half side of a thing, in units of the shorter side."""

    x: float
    y: float
    radius: float


def compose(picture: Picture, sprites: Sprites, traits: Tensor, width: int, height: int) -> Tensor:
    """Return the picture `(3, height, width)` in -1…1 for these traits `(NUM_TRAITS,)` of the noise."""
    shorter = min(width, height)
    evenly = evenly_of(traits)
    image = _ground(picture, evenly[6], width, height)
    spots = spots_of(picture, evenly, width / shorter, height / shorter)
    for item, spot in zip(picture.items, spots, strict=True):
        side = max(4, round(2 * spot.radius * shorter))
        sprite = sprites.sized(item.thing, picture.style, side)
        paste(image, sprite, round(spot.x * shorter - side / 2), round(spot.y * shorter - side / 2))
    return image * 2 - 1


def evenly_of(traits: Tensor) -> list[float]:
    """Return standard normal numbers as numbers that are anywhere in -1…1 with equal chance."""
    found: list[float] = torch.erf(traits / math.sqrt(2)).tolist()
    return found


def _ground(picture: Picture, evenly: float, width: int, height: int) -> Tensor:
    shift = _SHADE * evenly
    color = torch.tensor(COLORS[picture.background or "white"], dtype=torch.float32) + shift
    return (color.clamp(0, 255) / 255)[:, None, None].repeat(1, height, width)


def paste(image: Tensor, sprite: Tensor, left: int, top: int) -> None:
    """Put a premultiplied `(4, side, side)` over `image` in place; what lies outside is cut off."""
    height, width = image.shape[1:]
    side = sprite.shape[1]
    rows, columns = (slice(max(at, 0), min(at + side, end)) for at, end in ((top, height), (left, width)))
    if rows.start >= rows.stop or columns.start >= columns.stop:
        return
    seen = sprite[:, rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
    image[:, rows, columns] = seen[:3] + image[:, rows, columns] * (1 - seen[3:])


def spots_of(picture: Picture, evenly: list[float], width: float, height: float) -> list[Spot]:
    """Return where each thing is: as said, and for the rest as the numbers `evenly` in -1…1 settle it."""
    if picture.relation is None:
        return [_alone(picture.items[0], evenly, width, height)]
    way = RELATIONS[picture.relation]
    return [
        _beside(item, sign, way, evenly[3 * number : 3 * number + 3], (width, height))
        for number, (item, sign) in enumerate(zip(picture.items, (1, -1), strict=True))
    ]


def _alone(item: Item, evenly: list[float], width: float, height: float) -> Spot:
    radius = _radius(item, 1, evenly[2])
    sides = PLACES[item.place] if item.place else (0, 0)
    spread = _PLACE_SPREAD if item.place else _OPEN_PLACE_SPREAD
    x, y = (
        _along(side, spread * even, radius, length)
        for side, even, length in zip(sides, evenly[:2], (width, height), strict=True)
    )
    return Spot(x, y, radius)


def _along(side: int, shift: float, radius: float, length: float) -> float:
    """Return a coordinate near an end or in the middle, the thing within the picture."""
    low, high = radius + _MARGIN, length - radius - _MARGIN
    wanted = length * (0.5 + 0.27 * side)
    return min(max(wanted + shift, low), high)


def _beside(
    item: Item, sign: int, way: tuple[int, int], evenly: list[float], lengths: tuple[float, float]
) -> Spot:
    radius = _radius(item, 2, evenly[2])
    x, y = (
        length * (0.5 + 0.245 * sign * step) + (0.02 if step else _PLACE_SPREAD) * even
        for step, even, length in zip(way, evenly[:2], lengths, strict=True)
    )
    return Spot(x, y, radius)


def _radius(item: Item, num_items: int, evenly: float) -> float:
    radii = _RADII if num_items == 1 else _PAIR_RADII
    radius = radii[item.size] if item.size else _UNSAID[num_items]
    return radius * (1 + _SIZE_SPREAD * evenly)
