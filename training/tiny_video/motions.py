"""Scenes that a clip may show.

A `ClipScene` holds all that a caption says. What the caption leaves open (the exact place, size, shade and
amount of motion) is settled by a few numbers that belong to the seed; see `choreography`.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from scenes import COLORS as ALL_COLORS

SHAPES = ("circle", "square", "triangle", "star", "heart")
COLORS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "cyan")
"""Colors of objects."""
BACKGROUNDS = (*COLORS, "white", "black", "gray")
DEFAULT_BACKGROUND = "white"
_HELD_OUT = 10  # one combination of shape, color and motion of so many is never trained on
_MIN_CONTRAST = 60.0  # of 255, between the background and a color that changes into another


class Motion(StrEnum):
    """Motion of an object for as long as the clip lasts."""

    MOVES = "moves"
    GROWS = "grows"
    SHRINKS = "shrinks"
    FALLS = "falls"
    BOUNCES = "bounces"
    ROTATES = "rotates"
    FADES = "fades"
    APPEARS = "appears"
    TURNS = "turns"
    STAYS = "stays"


class Direction(StrEnum):
    """Direction of a move."""

    RIGHT = "right"
    LEFT = "left"
    UP = "up"
    DOWN = "down"
    UPPER_RIGHT = "upper right"
    UPPER_LEFT = "upper left"
    LOWER_RIGHT = "lower right"
    LOWER_LEFT = "lower left"


class Speed(StrEnum):
    """Speed of a move or a rotation; normal where the caption does not say it."""

    SLOW = "slow"
    NORMAL = "normal"
    FAST = "fast"


HEADINGS = {
    Direction.RIGHT: (1, 0),
    Direction.LEFT: (-1, 0),
    Direction.UP: (0, -1),
    Direction.DOWN: (0, 1),
    Direction.UPPER_RIGHT: (1, -1),
    Direction.UPPER_LEFT: (-1, -1),
    Direction.LOWER_RIGHT: (1, 1),
    Direction.LOWER_LEFT: (-1, 1),
}
"""Columns and rows; rows count downwards."""
RELATIONS = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}
"""Where the object that acts is, as seen from the one that stands still."""
SPEEDY = (Motion.MOVES, Motion.ROTATES)
"""Motions that have a speed."""


@dataclass(frozen=True)
class Thing:
    """An object as a caption names it."""

    shape: str
    color: str


@dataclass(frozen=True)
class ClipScene:
    """An object that acts, and perhaps a `neighbor` that stands still.

    `direction` belongs to `moves`, `speed` to `moves` and `rotates`, `becomes` (a color) to `turns`;
    `relation` says where the first object is beside the neighbor. No background said means white.
    """

    thing: Thing
    motion: Motion
    direction: Direction | None = None
    speed: Speed = Speed.NORMAL
    becomes: str | None = None
    background: str | None = None
    neighbor: Thing | None = None
    relation: str | None = None

    @property
    def is_held_out(self) -> bool:
        """True if the combination of shape, color and motion is kept for the evaluation."""
        combination = f"{self.thing.shape} {self.thing.color} {self.motion}"
        return hashlib.sha256(combination.encode()).digest()[0] % _HELD_OUT == 0


def draw_clip_scene(
    chance: random.Random, has_neighbor: bool | None = None, held_out: bool = False
) -> ClipScene:
    """Return any scene of the vocabulary that is, or is not, among those held out."""
    while True:
        wants_neighbor = chance.random() < 0.3 if has_neighbor is None else has_neighbor
        scene = _any_scene(chance, wants_neighbor)
        if scene.is_held_out == held_out and _is_visible(scene):
            return scene


def _any_scene(chance: random.Random, has_neighbor: bool) -> ClipScene:
    background = chance.choice((*BACKGROUNDS, *(None,) * 6))
    colors = [color for color in COLORS if color != background]
    motion = chance.choice((*Motion, Motion.MOVES, Motion.MOVES))
    shapes = [shape for shape in SHAPES if shape != "circle" or motion != Motion.ROTATES]
    thing = Thing(chance.choice(shapes), chance.choice(colors))
    direction = chance.choice(_directions(has_neighbor)) if motion == Motion.MOVES else None
    return ClipScene(
        thing=thing,
        motion=motion,
        direction=direction,
        speed=chance.choice(list(Speed)) if motion in SPEEDY else Speed.NORMAL,
        becomes=chance.choice([color for color in colors if color != thing.color])
        if motion == Motion.TURNS
        else None,
        background=background,
        neighbor=_other_thing(chance, thing, colors) if has_neighbor else None,
        relation=chance.choice(relations_of(motion, direction)) if has_neighbor else None,
    )


def _directions(has_neighbor: bool) -> list[Direction]:
    """Return the directions of a move; a neighbor leaves room for the straight ones alone."""
    return [direction for direction, heading in HEADINGS.items() if not has_neighbor or 0 in heading]


def _other_thing(chance: random.Random, thing: Thing, colors: Sequence[str]) -> Thing:
    """Return an object of another color, so that the two can be told apart."""
    return Thing(chance.choice(SHAPES), chance.choice([name for name in colors if name != thing.color]))


def relations_of(motion: Motion, direction: Direction | None) -> list[str]:
    """Return where an object with this motion may be beside its neighbor without running into it."""
    if direction is not None:
        is_across = HEADINGS[direction][0] != 0
        return ["above", "below"] if is_across else ["left of", "right of"]
    if motion in (Motion.FALLS, Motion.BOUNCES):
        return ["left of", "right of"]
    return list(RELATIONS)


def _is_visible(scene: ClipScene) -> bool:
    """Return whether a color on its way to another stays off the background's."""
    if scene.becomes is None:
        return True
    ground = np.array(ALL_COLORS[scene.background or DEFAULT_BACKGROUND], dtype=float)
    start, end = (np.array(ALL_COLORS[name], dtype=float) for name in (scene.thing.color, scene.becomes))
    way = start + np.linspace(0, 1, 9)[:, None] * (end - start)
    return bool(np.abs(way - ground).max(axis=1).min() >= _MIN_CONTRAST)
