"""True clips, drawn from signed distances."""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from draw import signed_distance

_EDGE = 1.3  # pixels from inside to outside of an edge
_REACH = 2.0  # radii from an object's center to the border of its table of distances
_CELLS = 401


@dataclass(frozen=True)
class Track:
    """An object over the frames of a clip.

    All tensors are `(frames,)`: the center and the radius by the clip's side, the clockwise angle in
    radians, the opacity in 0…1. `rgb` is `(frames, 3)` in 0…255.
    """

    shape: str
    x: Tensor
    y: Tensor
    radius: Tensor
    angle: Tensor
    opacity: Tensor
    rgb: Tensor


@dataclass(frozen=True)
class Clip:
    """Contents of a clip: its objects, the later ones in front, and the background of 0…255."""

    tracks: tuple[Track, ...]
    background: tuple[float, float, float]


def render(clip: Clip, num_frames: int, side: int) -> Tensor:
    """Return the clip as `(3, num_frames, side, side)` in -1…1."""
    ground = torch.tensor(clip.background)[None, :, None, None]
    frames = ground.expand(num_frames, 3, side, side)
    for track in clip.tracks:
        cover = _cover(track, side) * track.opacity[:, None, None]
        frames = torch.lerp(frames, track.rgb[:, :, None, None], cover[:, None])
    return (frames / 127.5 - 1).transpose(0, 1).contiguous()


def _cover(track: Track, side: int) -> Tensor:
    """Return the share of each pixel `(frames, side, side)` that lies inside the object."""
    radius = track.radius[:, None, None]
    axis = (torch.arange(side) + 0.5) / side
    across = (axis[None, None, :] - track.x[:, None, None]) / radius
    down = (axis[None, :, None] - track.y[:, None, None]) / radius
    cosine, sine = track.angle.cos()[:, None, None], track.angle.sin()[:, None, None]
    # The shape's own axes, turned back: distances are looked up, which costs less than to compute them.
    points = torch.stack([cosine * across + sine * down, cosine * down - sine * across], dim=-1) / _REACH
    table = _distances(track.shape).expand(len(points), 1, -1, -1)
    distance = functional.grid_sample(table, points, padding_mode="border", align_corners=True)[:, 0]
    return (0.5 - distance * radius * side / _EDGE).clamp(0, 1)


@cache
def _distances(shape: str) -> Tensor:
    axis = torch.linspace(-_REACH, _REACH, _CELLS)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return signed_distance(shape, x, y)[None, None]


def turns(share: float) -> float:
    """Return the radians of a share of a full turn."""
    return 2 * math.pi * share
