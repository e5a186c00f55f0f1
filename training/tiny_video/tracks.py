"""Objects of a clip found in every frame and followed from frame to frame."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from checker import CONTRAST, MIN_AREA, Mask, Pixels
from draw import signed_distance
from motions import SHAPES

Floats = NDArray[np.float64]

_MIDDLE = 0.35  # of an object's radius
_FRINGE = 8  # pixels around an object that a shape of its area may reach into
_NUM_GRID = 161  # points a side on which a shape's own area and centroid are measured


@dataclass(frozen=True)
class Sight:
    """An object in one frame: centroid and the radius of a disc of its area, by the side, and its color.

    `contrast` is how far its color is from the background, of 255.
    """

    x: float
    y: float
    radius: float
    rgb: Floats
    contrast: float
    mask: Mask


@dataclass(frozen=True)
class Track:
    """An object by frame: `None` where it is not seen."""

    sights: tuple[Sight | None, ...]

    @property
    def clearest(self) -> int:
        """Index of the frame in which the object is largest and least faded."""
        strengths = [0.0 if sight is None else sight.radius**2 * sight.contrast for sight in self.sights]
        return int(np.argmax(strengths))

    def values(self, name: str) -> Floats:
        """Return `x`, `y` or `radius` by frame, of the frames where the object is seen."""
        return np.array([getattr(sight, name) for sight in self.sights if sight is not None])


def ground_of(clip: Pixels) -> Floats:
    """Return the background's color: the median of the border of all frames `(frames, h, w, 3)`."""
    rows, columns = clip[:, [0, 1, -2, -1]], clip[:, :, [0, 1, -2, -1]]
    border = np.concatenate([rows.reshape(-1, 3), columns.reshape(-1, 3)])
    return np.asarray(np.median(border, axis=0), dtype=np.float64)


def find_sights(frame: Pixels, ground: Floats) -> list[Sight]:
    """Return the objects of a frame `(h, w, 3)` on a background of the color `ground`."""
    mask = np.abs(frame.astype(np.int16) - ground).max(axis=2) > CONTRAST
    least = MIN_AREA * mask.size
    return [_sight(frame, part, ground) for part in _parts(mask) if part.sum() >= least]


def follow(sights: list[list[Sight]]) -> list[Track]:
    """Return the tracks of objects seen by frame, begun at the first frame that shows most of them."""
    counts = [len(found) for found in sights]
    start = counts.index(max(counts))
    tracks = []
    for first in sights[start]:
        before = _chain(first, sights[:start][::-1])[::-1]
        tracks.append(Track((*before, first, *_chain(first, sights[start + 1 :]))))
    return tracks


def _chain(first: Sight, frames: list[list[Sight]]) -> list[Sight | None]:
    """Return the nearest object of each next frame."""
    last, chain = first, list[Sight | None]()
    for found in frames:
        nearest = min(found, key=lambda sight: _distance(sight, last), default=None)
        if nearest is not None and _distance(nearest, last) > 0.25:
            nearest = None
        chain.append(nearest)
        last = nearest or last
    return chain


def _distance(first: Sight, second: Sight) -> float:
    """Return how far apart two sights are in place, size and color, so that objects are not mixed up."""
    color = float(np.abs(first.rgb - second.rgb).max()) / 255
    return math.hypot(first.x - second.x, first.y - second.y) + 0.1 * color


def contrasts(clip: Pixels, ground: Floats, sight: Sight) -> Floats:
    """Return by frame how far the color at the middle of `sight` is from the background, of 255.

    The middle alone, since an object that grows or shrinks covers it all the time.
    """
    side = min(sight.mask.shape)
    y, x = (np.indices(sight.mask.shape) + 0.5) / side
    middle = sight.mask & (np.hypot(x - sight.x, y - sight.y) < _MIDDLE * sight.radius)
    differences = np.abs(clip.astype(np.int16)[:, middle] - ground).max(axis=2)
    return np.asarray(np.median(differences, axis=1), dtype=np.float64)


def shape_of(sight: Sight, angle: float = 0.0) -> str:
    """Return the shape that overlaps most with the object, turned clockwise by `angle` radians."""
    return max(SHAPES, key=lambda shape: overlap(sight, shape, angle))


def overlap(sight: Sight, shape: str, angle: float) -> float:
    """Return the intersection over union of an object with a shape of its area and centroid."""
    height, width = sight.mask.shape
    side = min(height, width)
    area, center_x, center_y = _moments(shape)
    radius = math.sqrt(sight.mask.sum() / area)
    rows, columns = (_near(np.atleast_1d(sight.mask.any(axis=axis))) for axis in (1, 0))
    cut = sight.mask[rows, columns]
    y, x = torch.meshgrid(torch.arange(height)[rows] + 0.5, torch.arange(width)[columns] + 0.5, indexing="ij")
    across, down = (x - sight.x * side) / radius, (y - sight.y * side) / radius
    cosine, sine = math.cos(angle), math.sin(angle)
    turned_x, turned_y = cosine * across + sine * down, cosine * down - sine * across
    ideal = (signed_distance(shape, turned_x + center_x, turned_y + center_y) < 0).numpy()
    return float((ideal & cut).sum() / (ideal | cut).sum())


def _near(is_covered: Mask) -> slice:
    """Return the part of an axis that an object covers, and a little more."""
    covered = np.flatnonzero(is_covered)
    return slice(max(int(covered[0]) - _FRINGE, 0), int(covered[-1]) + 1 + _FRINGE)


@cache
def _moments(shape: str) -> tuple[float, float, float]:
    """Return area and centroid of a shape of radius 1."""
    axis = torch.linspace(-1.3, 1.3, _NUM_GRID)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    inside = signed_distance(shape, x, y) < 0
    return (
        float(inside.sum()) * (2.6 / (_NUM_GRID - 1)) ** 2,
        float(x[inside].mean()),
        float(y[inside].mean()),
    )


def _sight(frame: Pixels, mask: Mask, ground: Floats) -> Sight:
    rows, columns = np.nonzero(mask)
    side = min(mask.shape)
    inner = _inner(mask)
    rgb = np.asarray(np.median(frame[inner if inner.any() else mask], axis=0), dtype=np.float64)
    return Sight(
        x=float(columns.mean() + 0.5) / side,
        y=float(rows.mean() + 0.5) / side,
        radius=math.sqrt(mask.sum() / math.pi) / side,
        rgb=rgb,
        contrast=float(np.abs(rgb - ground).max()),
        mask=mask,
    )


def _inner(mask: Mask) -> Mask:
    """Return the mask without the pixels at its edge, which are half background."""
    padded = np.pad(mask, 1)
    return mask & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]


def _parts(mask: Mask) -> list[Mask]:
    """Return the connected parts of a mask."""
    rows, columns = _runs(mask), _runs(mask.T).T
    left, parts = mask.copy(), []
    while left.any():
        part = np.zeros_like(mask)
        part.flat[int(left.argmax())] = True
        size = 0
        while (grown := int(part.sum())) > size:
            size = grown
            for runs in (rows, columns):
                is_touched = np.zeros(runs.max() + 1, dtype=bool)
                is_touched[runs[part]] = True
                part = mask & is_touched[runs]
        left &= ~part
        parts.append(part)
    return parts


def _runs(mask: Mask) -> NDArray[np.int64]:
    """Return the number of the run along its row that each pixel of the mask belongs to."""
    begins = mask & ~np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
    return np.asarray(np.cumsum(begins.ravel()), dtype=np.int64).reshape(mask.shape)
