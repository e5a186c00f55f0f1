"""Checker of clips: measures colors, shapes and motion against the scene that was asked for."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from checker import Pixels, nearest_color
from choreography import DISTANCES
from motions import DEFAULT_BACKGROUND, HEADINGS, RELATIONS, ClipScene, Motion, Thing
from tracks import Floats, Track, contrasts, find_sights, follow, ground_of, overlap, shape_of

MIN_MOVE = 0.2
"""Displacement, by the side, from which an object moves."""
MOST_STILL = 0.04
"""Spread, by the side, up to which it stays."""
MIN_GROWTH = 1.4
MIN_TURN = math.radians(45)
MOST_FADED = 0.4
"""Contrast at the faded end, by that at the other."""
_MIN_SMOOTH = 0.06  # a jump of so much of the side is one only if the other steps are much smaller
_TURN_STEP = math.radians(3)


@dataclass(frozen=True)
class ClipVerdict:
    """Marks of a clip, true where it is right; of two objects both must be.

    `place` is the relation to the neighbor.
    """

    background: bool
    count: bool
    color: bool = False
    shape: bool = False
    motion: bool = False
    speed: bool = False
    place: bool = False
    smooth: bool = False

    @property
    def everything(self) -> bool:
        return all(vars(self).values())


@dataclass(frozen=True)
class _Act:
    """The track of the object that acts, beside the clip it was found in."""

    scene: ClipScene
    track: Track
    clip: Pixels
    ground: Floats


def judge_clip(clip: Pixels, scene: ClipScene) -> ClipVerdict:
    """Return what is right in a clip `(frames, height, width, 3)` against what was asked for."""
    ground = ground_of(clip)
    background = nearest_color(ground) == (scene.background or DEFAULT_BACKGROUND)
    sights = [find_sights(frame, ground) for frame in clip]
    tracks = follow(sights)
    num_things = 1 if scene.neighbor is None else 2
    if len(tracks) != num_things or not _is_constant([len(found) for found in sights], scene):
        return ClipVerdict(background=background, count=False)
    actor, *others = max(permutations(tracks), key=lambda order: _likeness(order, scene))
    act = _Act(scene, actor, clip, ground)
    return ClipVerdict(
        background=background,
        count=True,
        color=_is_colored(actor, scene) and all(_is_colored_as(track, scene.neighbor) for track in others),
        shape=_is_shaped(actor, scene.thing, scene.motion)
        and all(_is_shaped(track, scene.neighbor) for track in others),
        motion=_MOTIONS[scene.motion](act) and all(_is_still(track) for track in others),
        speed=_is_speed(act),
        place=not others or _is_beside(actor, others[0], scene),
        smooth=all(_is_smooth(track) for track in (actor, *others)),
    )


def _is_constant(counts: list[int], scene: ClipScene) -> bool:
    """Return whether every frame shows as many objects as it should: what fades may be missed."""
    most = max(counts)
    fewest = most - 1 if scene.motion in (Motion.FADES, Motion.APPEARS) else most
    return min(counts) >= fewest


def _likeness(order: tuple[Track, ...], scene: ClipScene) -> tuple[int, int]:
    things = (scene.thing, scene.neighbor)
    pairs = [(track, thing) for track, thing in zip(order, things, strict=False) if thing is not None]
    colors = [_is_colored(order[0], scene), *(_is_colored_as(track, thing) for track, thing in pairs[1:])]
    return sum(colors), sum(_is_shaped(track, thing) for track, thing in pairs)


def _is_colored(track: Track, scene: ClipScene) -> bool:
    if scene.motion != Motion.TURNS:
        return _is_colored_as(track, scene.thing)
    first, last = track.sights[0], track.sights[-1]
    return first is not None and last is not None and nearest_color(first.rgb) == scene.thing.color


def _is_colored_as(track: Track, thing: Thing | None) -> bool:
    sight = track.sights[track.clearest]
    return thing is not None and sight is not None and nearest_color(sight.rgb) == thing.color


def _is_shaped(track: Track, thing: Thing | None, motion: Motion = Motion.STAYS) -> bool:
    """Return whether an object has its shape; one that rotates is upright in the first frame alone."""
    sight = track.sights[0 if motion == Motion.ROTATES else track.clearest]
    return thing is not None and sight is not None and shape_of(sight) == thing.shape


def _is_beside(actor: Track, neighbor: Track, scene: ClipScene) -> bool:
    if scene.relation is None:
        return True
    across = float(actor.values("x").mean() - neighbor.values("x").mean())
    down = float(actor.values("y").mean() - neighbor.values("y").mean())
    column, row = RELATIONS[scene.relation]
    return across * column + down * row > 0.2


def _is_smooth(track: Track) -> bool:
    """Return whether no frame jumps by more than three times the median step."""
    steps = np.hypot(np.diff(track.values("x")), np.diff(track.values("y")))
    return len(steps) > 0 and float(steps.max()) <= max(3 * float(np.median(steps)), _MIN_SMOOTH)


def _is_still(track: Track) -> bool:
    return all(float(np.ptp(track.values(name))) <= MOST_STILL for name in ("x", "y", "radius"))


def _is_centerd(track: Track, most: float = 1.5 * MOST_STILL) -> bool:
    """Return whether the object stays in its place, though it may change."""
    return all(float(np.ptp(track.values(name))) <= most for name in ("x", "y"))


def _displacement(track: Track) -> tuple[float, float]:
    x, y = track.values("x"), track.values("y")
    return float(x[-1] - x[0]), float(y[-1] - y[0])


def _moves(act: _Act) -> bool:
    if act.scene.direction is None:
        return False
    across, down = _displacement(act.track)
    column, row = HEADINGS[act.scene.direction]
    turn = math.atan2(across * row - down * column, across * column + down * row)
    return (
        math.hypot(across, down) >= MIN_MOVE
        and abs(turn) <= math.radians(22.5)
        and _residual(act.track) <= 0.05
    )


def _residual(track: Track) -> float:
    """Return how far the object leaves the straight line from its first place to its last."""
    x, y = track.values("x"), track.values("y")
    across, down = x[-1] - x[0], y[-1] - y[0]
    distance = ((x - x[0]) * down - (y - y[0]) * across) / max(math.hypot(across, down), 1e-6)
    return float(np.abs(distance).max())


def _is_speed(act: _Act) -> bool:
    """Return whether a move goes as far as its speed says; other motions have no measured speed."""
    if act.scene.motion != Motion.MOVES:
        return True
    distance = math.hypot(*_displacement(act.track))
    return min(DISTANCES, key=lambda speed: abs(DISTANCES[speed] - distance)) == act.scene.speed


def _grows(act: _Act) -> bool:
    return _changes_size(act.track, act.track.values("radius"))


def _shrinks(act: _Act) -> bool:
    return _changes_size(act.track, act.track.values("radius")[::-1])


def _changes_size(track: Track, radius: Floats) -> bool:
    trend = float(np.corrcoef(np.arange(len(radius)), radius)[0, 1]) if np.ptp(radius) > 0 else 0.0
    return bool(radius[-1] / radius[0] >= MIN_GROWTH) and trend >= 0.8 and _is_centerd(track)


def _falls(act: _Act) -> bool:
    x, y = act.track.values("x"), act.track.values("y")
    acceleration = 2 * float(np.polyfit(np.linspace(0, 1, len(y)), y, 2)[0])
    return bool(y[-1] - y[0] >= MIN_MOVE) and acceleration >= 0.3 and bool(np.ptp(x) <= 2 * MOST_STILL)


def _bounces(act: _Act) -> bool:
    x, y = act.track.values("x"), act.track.values("y")
    lowest = int(y.argmax())
    contact = int(y[: len(y) * 2 // 3].argmax())
    rises = y[contact] - y[contact:].min() >= 0.1 and contact > 0
    return bool(y[lowest] - y[0] >= MIN_MOVE) and bool(rises) and bool(np.ptp(x) <= 2 * MOST_STILL)


def _rotates(act: _Act) -> bool:
    """Follow the angle from frame to frame: a square turned by a right angle looks as it did before."""
    angle = 0.0
    for sight in act.track.sights:
        if sight is None:
            return False
        angles = [angle + step * _TURN_STEP for step in range(-6, 7)]
        angle = max(angles, key=lambda turned: overlap(sight, act.scene.thing.shape, turned))
    # The centroid of a triangle is not the point that it rotates about.
    return abs(angle) >= MIN_TURN and _is_centerd(act.track, most=3 * MOST_STILL)


def _fades(act: _Act) -> bool:
    return _loses_contrast(act, _contrasts(act))


def _appears(act: _Act) -> bool:
    return _loses_contrast(act, _contrasts(act)[::-1])


def _contrasts(act: _Act) -> Floats:
    sight = act.track.sights[act.track.clearest]
    return np.zeros(1) if sight is None else contrasts(act.clip, act.ground, sight)


def _loses_contrast(act: _Act, contrast: Floats) -> bool:
    return bool(contrast[-1] <= MOST_FADED * contrast[0]) and _is_centerd(act.track)


def _turns(act: _Act) -> bool:
    last = act.track.sights[-1]
    return last is not None and nearest_color(last.rgb) == act.scene.becomes and _is_centerd(act.track)


def _stays(act: _Act) -> bool:
    first, last = act.track.sights[0], act.track.sights[-1]
    if first is None or last is None or nearest_color(first.rgb) != nearest_color(last.rgb):
        return False
    return _is_still(act.track) and overlap(last, act.scene.thing.shape, 0.0) > 0.7


_MOTIONS: dict[Motion, Callable[[_Act], bool]] = {
    Motion.MOVES: _moves,
    Motion.GROWS: _grows,
    Motion.SHRINKS: _shrinks,
    Motion.FALLS: _falls,
    Motion.BOUNCES: _bounces,
    Motion.ROTATES: _rotates,
    Motion.FADES: _fades,
    Motion.APPEARS: _appears,
    Motion.TURNS: _turns,
    Motion.STAYS: _stays,
}
