"""Choose by the seed what a caption leaves open.

The network learns the image as a function of the caption and of its starting noise: what varies
between seeds (place, size, shade) is read off the noise itself, as the mean of a channel over the
image. Each of those means is a standard normal number. So the noise that an image is drawn from
already says which of all right images it becomes, the paths of the flow do not cross, and few steps
are enough; see "Flow straight and fast" (Liu et al. 2022), where such pairs are made by a teacher.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from scenes import PLACES, RELATIONS, RGB, Scene, Thing

NUM_TRAITS = 8
"""x, y and size of the first object, the same of the second, shade of the background and of the objects."""
RADII = {"small": 0.115, "medium": 0.185, "large": 0.275}
"""Radii of a single object, in units of the image's shorter side."""
PAIR_RADII = {"small": 0.105, "medium": 0.15, "large": 0.195}
"""Of two."""
_SIZE_SPREAD = 0.09
_MARGIN = 0.03
_SHADE = 13.0  # of 255


@dataclass(frozen=True)
class Placed:
    """An object where it is drawn: center and radius in units of the shorter side, color of 255."""

    shape: str
    x: float
    y: float
    radius: float
    rgb: tuple[float, float, float]


@dataclass(frozen=True)
class Layout:
    """A complete description of the image's content."""

    things: tuple[Placed, ...]
    background: tuple[float, float, float]


def traits_of(noise: Tensor) -> Tensor:
    """Standard normal numbers `(batch, NUM_TRAITS)` of starting noise `(batch, channels, height, width)`."""
    return noise[:, :NUM_TRAITS].mean((2, 3)) * math.sqrt(noise.shape[2] * noise.shape[3])


def noise_with(traits: Tensor, channels: int, height: int, width: int) -> Tensor:
    """Starting noise that has these traits, and is else as random as any."""
    noise = torch.randn(len(traits), channels, height, width)
    noise[:, :NUM_TRAITS] += ((traits - traits_of(noise)) / math.sqrt(height * width))[..., None, None]
    return noise


def place(scene: Scene, traits: Tensor, width: float = 1.0, height: float = 1.0) -> Layout:
    """The image of `scene` for these `(NUM_TRAITS,)`; `width` and `height` by the shorter side."""
    evenly = (0.5 * (1 + torch.erf(traits / math.sqrt(2)))).tolist()  # each in 0…1
    background = _shaded(scene.background or "white", evenly[6])
    if scene.relation is None:
        things = [_alone(scene.things[0], evenly[:3], width, height)]
    else:
        things = [
            _beside(thing, sign, RELATIONS[scene.relation], evenly[3 * i : 3 * i + 3], (width, height))
            for i, (thing, sign) in enumerate(zip(scene.things, (1, -1), strict=True))
        ]
    placed = [
        Placed(thing.shape, x, y, radius, _shaded(thing.color, evenly[7]))
        for thing, (x, y, radius) in zip(scene.things, things, strict=True)
    ]
    return Layout(tuple(placed), background)


def _alone(thing: Thing, evenly: list[float], width: float, height: float) -> tuple[float, float, float]:
    radius = _radius(thing, RADII, evenly[2])
    if thing.place is None:
        column, row = None, None
    else:
        column, row = PLACES[thing.place]
    return _along(column, evenly[0], radius, width), _along(row, evenly[1], radius, height), radius


def _along(side: int | None, evenly: float, radius: float, length: float) -> float:
    """A coordinate: near an end, in the middle, or anywhere."""
    low, high = radius + _MARGIN, length - radius - _MARGIN
    if side is None:
        return low + (high - low) * evenly
    if side == 0:
        return length / 2 + 0.12 * (evenly - 0.5)
    reach = low + (max(0.05, 0.28 * length - low)) * evenly
    return reach if side < 0 else length - reach


def _beside(
    thing: Thing, sign: int, direction: tuple[int, int], evenly: list[float], lengths: tuple[float, float]
) -> tuple[float, float, float]:
    radius = _radius(thing, PAIR_RADII, evenly[2])
    center = [
        length * (0.5 + 0.24 * sign * way) + (0.05 if way else 0.16) * (uniform - 0.5)
        for length, way, uniform in zip(lengths, direction, evenly, strict=False)
    ]
    return center[0], center[1], radius


def _radius(thing: Thing, radii: dict[str, float], evenly: float) -> float:
    if thing.size is None:
        return radii["small"] + (radii["large"] - radii["small"]) * evenly
    return radii[thing.size] * (1 + _SIZE_SPREAD * (2 * evenly - 1))


def _shaded(color: str, evenly: float) -> tuple[float, float, float]:
    """A little darker or lighter."""
    shift = _SHADE * (2 * evenly - 1)
    red, green, blue = (min(max(value + shift, 0.0), 255.0) for value in RGB[color])
    return red, green, blue
