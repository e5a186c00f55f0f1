"""Clips full of edges that move in every way, for the VAE."""

import random

import torch
from torch import Tensor

from motions import SHAPES
from render import Clip, Track, turns
from scenes import COLORS

_NATIVE_SIDE, _NATIVE_FRAMES = 96, 17
_SHADE = 16.0  # of 255


def busy_clip(chance: random.Random, num_frames: int, side: int) -> Clip:
    """Return a few objects of any size, some cut off by the border, at the scale of whole clips.

    They start, stop, turn, grow, fade and change their colors at any time. A clip of one frame shows
    any moment of this.
    """
    tracks = tuple(_busy_track(chance, num_frames, side) for _ in range(chance.choice((1, 2, 2, 3))))
    return Clip(tracks, _any_color(chance))


def _busy_track(chance: random.Random, num_frames: int, side: int) -> Track:
    scale = _NATIVE_SIDE / side
    reach = 0.9 * scale * max(num_frames - 1, 1) / (_NATIVE_FRAMES - 1)
    done = _progress(chance, num_frames)
    start, end = (torch.tensor(_any_color(chance)) for _ in range(2))
    radius = chance.uniform(0.13, 0.3) * scale
    return Track(
        shape=chance.choice(SHAPES),
        x=chance.random() + chance.uniform(-reach, reach) * done,
        y=chance.random() + chance.uniform(-reach, reach) * done,
        radius=radius * chance.choice((1.0, 1.0, chance.uniform(0.55, 1.5))) ** done,
        angle=chance.choice((0.0, turns(chance.random()))) + turns(chance.choice((0.0, 0.3, -0.3))) * done,
        opacity=chance.choice((torch.ones(num_frames), torch.ones(num_frames), done, 1 - done)),
        rgb=torch.lerp(start, end if chance.random() < 0.3 else start, done[:, None]),
    )


def _progress(chance: random.Random, num_frames: int) -> Tensor:
    """Return how much of its motion an object has done by each frame: 0, then evenly more, then 1."""
    if num_frames == 1:
        return torch.tensor([chance.random()])
    begin, end = sorted((chance.uniform(-0.5, 1.0), chance.uniform(0.0, 1.5)))
    time = torch.linspace(0, 1, num_frames)
    return ((time - begin) / max(end - begin, 0.1)).clamp(0, 1)


def _any_color(chance: random.Random) -> tuple[float, float, float]:
    shift = chance.uniform(-_SHADE, _SHADE)
    red, green, blue = (min(max(value + shift, 0.0), 255.0) for value in chance.choice(list(COLORS.values())))
    return red, green, blue
