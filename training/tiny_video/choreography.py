"""Choreography: the place, size, shade and amount of motion that the seed settles.

A caption leaves them open. As in tiny-flux (`layout`) each of them is read off the starting noise: the mean
of a noise channel over the clip, times the root of the number of values, is a standard normal number. So the
noise already says which of all right clips it becomes, and few steps suffice without guidance.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from motions import DEFAULT_BACKGROUND, HEADINGS, RELATIONS, ClipScene, Motion, Speed, Thing
from render import Clip, Track, turns
from scenes import COLOURS

NUM_TRAITS = 9
"""x, y, size and amount of motion of the first object; x, y, size of the neighbour; two shades."""
AMOUNT = 3
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
_SWAY = 0.02  # of a lane's middle, to either side
_SHADE = 13.0  # of 255
_FIRST_CONTACT = 0.36  # of the clip's time
_BOUNCE = 0.5  # height of a bounce by that of the fall before it
_TRAVELLING = (Motion.MOVES, Motion.FALLS, Motion.BOUNCES)
_CHANGING = (Motion.GROWS, Motion.SHRINKS)

Range = tuple[float, float]


@dataclass(frozen=True)
class _Room:
    """Ranges that an object's centre may be in, by the side."""

    across: Range
    down: Range


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
    rooms = _rooms(scene)
    tracks = [_actor(scene, rooms[0], evenly, time)]
    if scene.neighbour is not None:
        tracks.insert(0, _neighbour(scene.neighbour, rooms[1], [*evenly[4:7], evenly[8]], time))
    ground = _shaded(scene.background or DEFAULT_BACKGROUND, evenly[7]).tolist()
    return Clip(tuple(tracks), (ground[0], ground[1], ground[2]))


def _rooms(scene: ClipScene) -> tuple[_Room, _Room]:
    """Return where the object that acts may be, and where its neighbour."""
    anywhere = (0.0, 1.0)
    if scene.relation is None:
        return _Room(anywhere, anywhere), _Room(anywhere, anywhere)
    column, row = RELATIONS[scene.relation]
    first, second = (
        _Room(*(_lane(sign * way) if way else anywhere for way in (column, row))) for sign in (1, -1)
    )
    return first, second


def _lane(side: int) -> Range:
    middle = 0.5 + _LANE * side
    return middle - _SWAY, middle + _SWAY


def _actor(scene: ClipScene, room: _Room, evenly: list[float], time: Tensor) -> Track:
    still = torch.zeros_like(time)
    radius = _radius(scene, evenly[2], evenly[AMOUNT], time)
    x, y = _course(scene, room, evenly, float(radius.max()), time)
    return Track(
        shape=scene.thing.shape,
        x=x,
        y=y,
        radius=radius,
        angle=_amount(scene, ANGLES, evenly[AMOUNT]) * time if scene.motion == Motion.ROTATES else still,
        opacity=_opacity(scene.motion, evenly[AMOUNT], time),
        rgb=_rgb(scene, evenly, time),
    )


def _neighbour(thing: Thing, room: _Room, evenly: list[float], time: Tensor) -> Track:
    every, radius = torch.ones_like(time), _between(_PAIR_RADII, evenly[2])
    x, y = _within(room.across, radius, evenly[0]), _within(room.down, radius, evenly[1])
    rgb = _shaded(thing.colour, evenly[3]).expand(len(time), 3)
    return Track(thing.shape, x * every, y * every, radius * every, 0 * every, every, rgb)


def _radius(scene: ClipScene, evenly: float, amount: float, time: Tensor) -> Tensor:
    is_alone = scene.neighbour is None
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
    scene: ClipScene, room: _Room, evenly: list[float], radius: float, time: Tensor
) -> tuple[Tensor, Tensor]:
    """Return x and y of the centre by frame."""
    amount = evenly[AMOUNT]
    if scene.motion == Motion.FALLS:
        down = _between((0.48, 0.62), amount) * time.square()
        return _straight(room.across, 0 * time, radius, evenly[0]), _straight(room.down, down, radius, 0.0)
    if scene.motion == Motion.BOUNCES:
        return _straight(room.across, 0 * time, radius, evenly[0]), _bounces(radius, amount, time)
    column, row = HEADINGS[scene.direction] if scene.direction is not None else (0, 0)
    distance = _amount(scene, DISTANCES, amount) / max(math.hypot(column, row), 1.0)
    return (
        _straight(room.across, column * distance * time, radius, evenly[0]),
        _straight(room.down, row * distance * time, radius, evenly[1]),
    )


def _straight(room: Range, offset: Tensor, radius: float, evenly: float) -> Tensor:
    """Return a coordinate that starts anywhere from which it stays inside while it goes by `offset`."""
    low = max(room[0], radius + _MARGIN - float(offset.min()))
    high = min(room[1], 1 - radius - _MARGIN - float(offset.max()))
    return (_between((low, high), evenly) if low < high else (low + high) / 2) + offset


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
    start = _shaded(scene.thing.colour, evenly[8])
    if scene.becomes is None:
        return start.expand(len(time), 3)
    done = ((time - _between((0.15, 0.35), evenly[AMOUNT])) / 0.5).clamp(0, 1)
    return torch.lerp(start, _shaded(scene.becomes, evenly[8]), done[:, None])


def _amount(scene: ClipScene, amounts: dict[Speed, float], evenly: float) -> float:
    return amounts[scene.speed] * _between((0.95, 1.05), evenly)


def _within(room: Range, radius: float, evenly: float) -> float:
    return _between((max(room[0], radius + _MARGIN), min(room[1], 1 - radius - _MARGIN)), evenly)


def _between(span: Range, evenly: float) -> float:
    return span[0] + (span[1] - span[0]) * evenly


def _shaded(colour: str, evenly: float) -> Tensor:
    """Return a colour `(3,)` of 0…255, a little darker or lighter."""
    return (torch.tensor(COLOURS[colour]) + _SHADE * (2 * evenly - 1)).clamp(0, 255)
