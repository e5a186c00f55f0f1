"""Measure an image's content: colors and objects with their positions, sizes and shapes."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np
import torch
from numpy.typing import NDArray

from draw import signed_distance
from layout import PAIR_RADII, RADII
from scenes import COLORS, PLACES, RELATIONS, RGB, SHAPES, SIZES, TAUGHT_SHAPES, Scene, Thing

CONTRAST = 36
"""Minimum difference from the background, in one channel of 0…255, for a pixel of an object."""
MIN_AREA = 0.0025
"""Of the image: what is smaller is a speck, not an object."""
SIDE_FROM = 0.08
"""So far from the middle, of the side's length, an object is at a side."""

Rgb = tuple[int, int, int]
Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Vocabulary:
    """The colors and shapes that are told apart."""

    colors: Mapping[str, Rgb]
    shapes: Sequence[str]


KNOWN = Vocabulary(COLORS, SHAPES)
WITH_TAUGHT = Vocabulary(RGB, (*SHAPES, *TAUGHT_SHAPES))


@dataclass(frozen=True)
class Seen:
    """An object: its middle in 0…1 of the image, its radius by the shorter side."""

    x: float
    y: float
    radius: float
    color: str
    shape: str


@dataclass(frozen=True)
class Assessment:
    """Attributes that match the caption, in all objects; those that the caption leaves open match."""

    background: bool
    count: bool
    color: bool = False
    shape: bool = False
    size: bool = False
    place: bool = False

    @property
    def everything(self) -> bool:
        return all(vars(self).values())


def judge(image: Pixels, scene: Scene, vocabulary: Vocabulary = KNOWN) -> Assessment:
    """An image `(height, width, 3)` compared with the caption. `place` is the relation, if there is one."""
    ground = border_color(image)
    background = nearest_color(ground, vocabulary) == (scene.background or "white")
    seen = find_things(image, ground, vocabulary)
    if len(seen) != len(scene.things):
        return Assessment(background=background, count=False)
    ordered = max(permutations(seen), key=lambda order: _likeness(order, scene.things))
    pairs = list(zip(ordered, scene.things, strict=True))
    return Assessment(
        background=background,
        count=True,
        color=all(seen.color == thing.color for seen, thing in pairs),
        shape=all(seen.shape == thing.shape for seen, thing in pairs),
        size=all(thing.size in (None, _size(seen, len(pairs))) for seen, thing in pairs),
        place=_is_in_place(ordered, scene),
    )


def find_things(image: Pixels, ground: NDArray[np.float64], vocabulary: Vocabulary = KNOWN) -> list[Seen]:
    """The objects on a background of the color `ground`."""
    mask = np.abs(image.astype(np.int16) - ground).max(axis=2) > CONTRAST
    least = MIN_AREA * mask.size
    return [_look(image, part, vocabulary) for part in _parts(mask) if part.sum() >= least]


def nearest_color(rgb: NDArray[np.float64], vocabulary: Vocabulary = KNOWN) -> str:
    colors = vocabulary.colors
    return min(colors, key=lambda name: float(np.square(rgb - np.array(colors[name])).sum()))


def border_color(image: Pixels) -> NDArray[np.float64]:
    """Return the color that most of the image's border has: the background's."""
    rows, columns = image[[0, 1, -2, -1]].reshape(-1, 3), image[:, [0, 1, -2, -1]].reshape(-1, 3)
    color: NDArray[np.float64] = np.median(np.concatenate([rows, columns]), axis=0)
    return color


def _look(image: Pixels, part: Mask, vocabulary: Vocabulary) -> Seen:
    rows, columns = np.flatnonzero(part.any(axis=1)), np.flatnonzero(part.any(axis=0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    cut = part[top:bottom, left:right]
    fits = {shape: _overlap(cut, shape) for shape in vocabulary.shapes}
    shape = max(fits, key=lambda name: fits[name])
    x0, y0, x1, y1 = _extent(shape)
    radius = 0.5 * ((right - left) / (x1 - x0) + (bottom - top) / (y1 - y0))
    height, width = part.shape
    inside = _inner(part)
    return Seen(
        x=float((left + right) / 2 / width),
        y=float((top + bottom) / 2 / height),
        radius=float(radius / min(width, height)),
        color=nearest_color(np.median(image[inside if inside.any() else part], axis=0), vocabulary),
        shape=shape,
    )


def _inner(part: Mask) -> Mask:
    """Exclude the pixels at the edge, which are half background."""
    padded = np.pad(part, 1)
    return part & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]


def _parts(mask: Mask) -> list[Mask]:
    """Connected parts."""
    left, parts = mask.copy(), []
    for start in zip(*np.nonzero(mask), strict=True):
        if left[start]:
            parts.append(_flood(left, start))
    return parts


def _flood(left: Mask, start: tuple[int, int]) -> Mask:
    """The part around `start`, which is taken out of `left`."""
    part, waiting = np.zeros_like(left), deque([start])
    left[start] = False
    height, width = left.shape
    while waiting:
        row, column = waiting.popleft()
        part[row, column] = True
        for y, x in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if 0 <= y < height and 0 <= x < width and left[y, x]:
                left[y, x] = False
                waiting.append((y, x))
    return part


@cache
def _extent(shape: str) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a shape of radius 1."""
    axis = torch.linspace(-1.3, 1.3, 521)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    inside = signed_distance(shape, x, y) < 0
    return float(x[inside].min()), float(y[inside].min()), float(x[inside].max()), float(y[inside].max())


def _overlap(cut: Mask, shape: str) -> float:
    """Intersection over union of a cut-out with the shape stretched evenly to its size."""
    height, width = cut.shape
    left, top, right, bottom = _extent(shape)
    radius = 0.5 * (width / (right - left) + height / (bottom - top))
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    x, y = (x - width / 2) / radius + (left + right) / 2, (y - height / 2) / radius + (top + bottom) / 2
    ideal = (signed_distance(shape, x, y) < 0).numpy()
    return float((ideal & cut).sum() / (ideal | cut).sum())


def _likeness(order: tuple[Seen, ...], things: tuple[Thing, ...]) -> tuple[int, int]:
    pairs = list(zip(order, things, strict=True))
    return (
        sum(seen.color == thing.color for seen, thing in pairs),
        sum(seen.shape == thing.shape for seen, thing in pairs),
    )


def _size(seen: Seen, count: int) -> str:
    radii = RADII if count == 1 else PAIR_RADII
    return min(SIZES, key=lambda size: abs(np.log(seen.radius / radii[size])))


def _is_in_place(order: tuple[Seen, ...], scene: Scene) -> bool:
    if scene.relation is None:
        (seen,), (thing,) = order, scene.things
        return thing.place is None or PLACES[thing.place] == (_side(seen.x), _side(seen.y))
    first, second = order
    across, down = first.x - second.x, first.y - second.y
    if scene.relation == "next to":
        return abs(across) > abs(down)
    column, row = RELATIONS[scene.relation]
    return across * column > abs(down) if column else down * row > abs(across)


def _side(position: float) -> int:
    if abs(position - 0.5) < SIDE_FROM:
        return 0
    return -1 if position < 0.5 else 1
