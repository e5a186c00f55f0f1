"""Choreography: the size, shades and amount of motion that the seed settles, and places, which follow.

A caption leaves them open. As in tiny-flux (`layout`) each of them is read off the starting noise: the mean
of a noise channel over the clip, times the root of the number of values, is a standard normal number. So the
noise already says which of all right clips it becomes, and few steps suffice without guidance.

Places are not among them. Attention in Wan knows how far tokens are from one another and not where they are,
so a network this small learns the middle of a clip soon, and places that the noise would name not at all.
What moves has the middle of its way in the middle of the clip, or of its lane beside another object.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from motions import DEFAULT_BACKGROUND, HEADINGS, RELATIONS, ClipScene, Motion, Speed, Thing
from render import Clip, Track, turns
from scenes import COLORS

NUM_TRAITS = 5
"""Size and amount of motion of the first object; size of the neighbor; shades of ground and objects."""
_SIZE, _NEIGHBOR_SIZE, _GROUND, _THINGS = 0, 2, 3, 4
AMOUNT = 1
"""Index of the amount of motion, which a given first frame does not settle."""
DISTANCES = {Speed.SLOW: 0.28, Speed.NORMAL: 0.44, Speed.FAST: 0.6}
"""How far an object moves, by the side."""
ANGLES = {Speed.SLOW: turns(60 / 360), Speed.NORMAL: turns(100 / 360), Speed.FAST: turns(150 / 360)}
"""How far it rotates, in radians."""
_TRAVELLING_RADII = (0.148, 0.168)
_RESTING_RADII = (0.18, 0.27)
_PAIR_RADII = (0.148, 0.16)
_GROWTH, _PAIR_GROWTH = (1.65, 1.85), (1.5, 1.6)
_SMALL_RADII, _SMALL_PAIR_RADII = (0.148, 0.16), (0.136, 0.14)  # before it grows, or after it shrank
_MARGIN = 0.015
_LANE = 0.245  # from the middle to each of two objects
_SHADE = 13.0  # of 255
_FIRST_CONTACT = 0.36  # of the clip's time
_BOUNCE = 0.5  # height of a bounce by that of the fall before it
_TRAVELLING = (Motion.MOVES, Motion.FALLS, Motion.BOUNCES)
_CHANGING = (Motion.GROWS, Motion.SHRINKS)

Range = tuple[float, float]


@dataclass(frozen=True)
class _Place:
    """The middle of what an object does, by the side."""

    x: float
    y: float


def traits_of(noise: Tensor) -> Tensor:
    """Return the traits `(batch, NUM_TRAITS)` of noise `(batch, channels, frames, height, width)`."""
    return noise[:, :NUM_TRAITS].mean((2, 3, 4)) * math.sqrt(noise[0, 0].numel())


def set_traits(noise: Tensor, traits: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Return the noise changed so that it has these traits, or those of them that `chosen` marks.

    `traits` and `chosen` (0 or 1) are `(batch, NUM_TRAITS)`.
    """
    change = (traits - traits_of(noise)) / math.sqrt(noise[0, 0].numel())
    if chosen is not None:
        change = change * chosen
    changed = noise.clone()
    changed[:, :NUM_TRAITS] += change[..., None, None, None]
    return changed


def choreograph(scene: ClipScene, traits: Tensor, num_frames: int) -> Clip:
    """Return the clip of a scene for these traits `(NUM_TRAITS,)`."""
    evenly = (0.5 * (1 + torch.erf(traits / math.sqrt(2)))).tolist()  # each in 0…1
    time = torch.linspace(0, 1, num_frames)
    first, second = _places(scene)
    tracks = [_actor(scene, first, evenly, time)]
    if scene.neighbor is not None:
        tracks.insert(0, _neighbor(scene.neighbor, second, evenly, time))
    ground = _shaded(scene.background or DEFAULT_BACKGROUND, evenly[_GROUND]).tolist()
    return Clip(tuple(tracks), (ground[0], ground[1], ground[2]))


def _places(scene: ClipScene) -> tuple[_Place, _Place]:
    """Return where the object that acts is, and where its neighbor."""
    column, row = (0, 0) if scene.relation is None else RELATIONS[scene.relation]
    first, second = (_Place(0.5 + side * _LANE * column, 0.5 + side * _LANE * row) for side in (1, -1))
    return first, second


def _actor(scene: ClipScene, place: _Place, evenly: list[float], time: Tensor) -> Track:
    still = torch.zeros_like(time)
    radius = _radius(scene, evenly[_SIZE], evenly[AMOUNT], time)
    x, y = _course(scene, place, evenly[AMOUNT], float(radius.max()), time)
    return Track(
        shape=scene.thing.shape,
        x=x,
        y=y,
        radius=radius,
        angle=_amount(scene, ANGLES, evenly[AMOUNT]) * time if scene.motion == Motion.ROTATES else still,
        opacity=_opacity(scene.motion, evenly[AMOUNT], time),
        rgb=_rgb(scene, evenly, time),
    )


def _neighbor(thing: Thing, place: _Place, evenly: list[float], time: Tensor) -> Track:
    every, radius = torch.ones_like(time), _between(_PAIR_RADII, evenly[_NEIGHBOR_SIZE])
    rgb = _shaded(thing.color, evenly[_THINGS]).expand(len(time), 3)
    return Track(thing.shape, place.x * every, place.y * every, radius * every, 0 * every, every, rgb)


def _radius(scene: ClipScene, evenly: float, amount: float, time: Tensor) -> Tensor:
    is_alone = scene.neighbor is None
    if scene.motion in _CHANGING:
        small = _between(_SMALL_RADII if is_alone else _SMALL_PAIR_RADII, evenly)
        factor = _between(_GROWTH if is_alone else _PAIR_GROWTH, amount)
        done = time if scene.motion == Motion.GROWS else 1 - time
        return small * factor**done
    if scene.motion in _TRAVELLING:
        radii = _TRAVELLING_RADII if is_alone else _PAIR_RADII
    else:
        radii = _RESTING_RADII if is_alone else _PAIR_RADII
    return _between(radii, evenly) * torch.ones_like(time)


def _course(
    scene: ClipScene, place: _Place, amount: float, radius: float, time: Tensor
) -> tuple[Tensor, Tensor]:
    """Return x and y of the center by frame."""
    if scene.motion == Motion.FALLS:
        down = _between((0.48, 0.62), amount) * time.square()
        return place.x + 0 * time, radius + _MARGIN + down
    if scene.motion == Motion.BOUNCES:
        return place.x + 0 * time, _bounces(radius, amount, time)
    column, row = HEADINGS[scene.direction] if scene.direction is not None else (0, 0)
    distance = _amount(scene, DISTANCES, amount) / max(math.hypot(column, row), 1.0)
    return (
        _straight(place.x, column * distance * time, radius),
        _straight(place.y, row * distance * time, radius),
    )


def _straight(middle: float, offset: Tensor, radius: float) -> Tensor:
    """Return a coordinate that goes by `offset` around `middle`, and stays inside."""
    least, most = float(offset.min()), float(offset.max())
    start = middle - (least + most) / 2
    return min(max(start, radius + _MARGIN - least), 1 - radius - _MARGIN - most) + offset


def _bounces(radius: float, amount: float, time: Tensor) -> Tensor:
    """Return the height of a ball that falls, touches the floor, and again after a lower flight."""
    floor = 1 - radius - _MARGIN
    fall = floor - radius - _MARGIN - 0.12 * (1 - amount)
    flight = 2 * math.sqrt(_BOUNCE) * _FIRST_CONTACT  # time of the first bounce
    since = time - _FIRST_CONTACT
    second = since - flight
    height = torch.where(
        since < 0,
        1 - (time / _FIRST_CONTACT).square(),
        torch.where(
            second < 0,
            _flight(since, flight, _BOUNCE),
            _flight(second, flight * math.sqrt(_BOUNCE), _BOUNCE**2),
        ),
    )
    return floor - fall * height.clamp(0, 1)


def _flight(time: Tensor, length: float, height: float) -> Tensor:
    return height * (1 - (2 * time / length - 1).square())


def _opacity(motion: Motion, amount: float, time: Tensor) -> Tensor:
    done = (time / _between((0.8, 1.0), amount)).clamp(0, 1)
    if motion == Motion.FADES:
        return 1 - done
    return done if motion == Motion.APPEARS else torch.ones_like(time)


def _rgb(scene: ClipScene, evenly: list[float], time: Tensor) -> Tensor:
    start = _shaded(scene.thing.color, evenly[_THINGS])
    if scene.becomes is None:
        return start.expand(len(time), 3)
    done = ((time - _between((0.15, 0.35), evenly[AMOUNT])) / 0.5).clamp(0, 1)
    return torch.lerp(start, _shaded(scene.becomes, evenly[_THINGS]), done[:, None])


def _amount(scene: ClipScene, amounts: dict[Speed, float], evenly: float) -> float:
    return amounts[scene.speed] * _between((0.95, 1.05), evenly)


def _between(span: Range, evenly: float) -> float:
    return span[0] + (span[1] - span[0]) * evenly


def _shaded(color: str, evenly: float) -> Tensor:
    """Return a color `(3,)` of 0…255, a little darker or lighter."""
    return (torch.tensor(COLORS[color]) + _SHADE * (2 * evenly - 1)).clamp(0, 255)
