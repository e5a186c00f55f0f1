"""Words that leave something open, and what a drawing has by habit where they do.

A `Wish` is what words say of a scene. In full it says as much as a caption of `scenes`; but a prompt may be
"a heart", "something red" or, as negative prompts are, nothing but "red". What is left open differs from
drawing to drawing, though not evenly: hearts are red by habit and stars yellow (`USUAL`), so that there is
something to say no to.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scenes import COLORS, RELATIONS, Scene, Words, caption, draw_scene

USUAL = {
    "circle": "blue",
    "square": "green",
    "triangle": "orange",
    "star": "yellow",
    "heart": "red",
    "ring": "purple",
    "cross": "black",
    "diamond": "cyan",
}
"""The color that a shape has by habit."""
OPEN = "open"
"""Of background and relation where words say nothing of them; `None` is what a sentence means by silence."""
_USUAL_SHARE = 0.3
_OPEN_IF_USUAL, _OPEN_ELSE = 0.5, 0.15
_NOUNS = ("shape", "shape", "figure", "thing")


@dataclass(frozen=True)
class Wanted:
    """An object in words; what they leave open is `None`."""

    shape: str | None = None
    color: str | None = None
    size: str | None = None
    place: str | None = None


@dataclass(frozen=True)
class Wish:
    """A request in words, and what they say. `relation` is `None` if there is one object."""

    words: str
    things: tuple[Wanted, ...] = ()
    background: str | None = OPEN
    relation: str | None = OPEN

    @property
    def in_order(self) -> tuple[Wanted, ...]:
        """The objects, the left or upper one first, whichever the words name first."""
        is_turned = self.relation in RELATIONS and sum(RELATIONS[self.relation]) > 0
        return self.things[::-1] if is_turned else self.things


NOTHING = Wish("")


def scene_of(index: int) -> Scene:
    """Return the scene of this number; single objects are a little more often, and habits show."""
    chance = random.Random(f"habit {index}")
    while True:
        scene = with_habits(draw_scene(chance, num_things=1 if chance.random() < 0.55 else 2), chance)
        if not scene.is_held_out:
            return scene


def with_habits(scene: Scene, chance: random.Random) -> Scene:
    """Return the scene with some objects in their shape's usual color, where it can be seen."""
    ground = scene.background or "white"
    things = [
        replace(thing, color=USUAL[thing.shape])
        if USUAL[thing.shape] != ground and chance.random() < _USUAL_SHARE
        else thing
        for thing in scene.things
    ]
    return replace(scene, things=tuple(things))


def sentence(scene: Scene, chance: random.Random) -> Wish:
    """Return a caption of the scene that may leave colors and shapes open."""
    things = [_leave_open(wanted, chance, len(scene.things)) for wanted in _all_of(scene)]
    if all(thing.shape and thing.color for thing in things):
        words = caption(scene, chance)
    else:
        words = worded(things, scene.relation, scene.background, chance)
    return Wish(words, tuple(things), scene.background, scene.relation)


def worded(
    things: Sequence[Wanted], relation: str | None, background: str | None, chance: random.Random | None
) -> str:
    """Return a caption that may leave something open: in plain words, or with a `chance` in any."""
    words = _VagueWords(chance)
    return words.sentence([words.wanted(thing) for thing in things], relation, background)


def fragment(scene: Scene, chance: random.Random) -> Wish:
    """Return a few words that are no sentence and leave all else open: "red", "red circle", "circles"."""
    words, thing = Words(chance), chance.choice(scene.things)
    kind = chance.random()
    if kind < 0.1:
        ground = scene.background or "white"
        return Wish(f"{words.color(ground)} background", background=ground)
    color = thing.color if kind < 0.7 else None
    shape = thing.shape if kind > 0.4 else None
    said = ([words.color(color)] if color else []) + ([words.shape(shape)] if shape else [])
    if shape is None and chance.random() < 0.2:
        said.append(words.pick(_NOUNS))
    text = " ".join(said) + ("s" if len(said) > (shape is None) and chance.random() < 0.12 else "")
    return Wish(text, (Wanted(shape, color),))


def _all_of(scene: Scene) -> list[Wanted]:
    return [Wanted(thing.shape, thing.color, thing.size, thing.place) for thing in scene.things]


def _leave_open(thing: Wanted, chance: random.Random, num_things: int) -> Wanted:
    """Habits are left unsaid more often than what is unusual; so they are what silence mostly means."""
    assert thing.shape is not None
    share = (_OPEN_IF_USUAL if thing.color == USUAL[thing.shape] else _OPEN_ELSE) / num_things
    return replace(
        thing,
        shape=None if chance.random() < share else thing.shape,
        color=None if chance.random() < share else thing.color,
    )


class _VagueWords(Words):
    """Words for objects of which not all is said."""

    def wanted(self, thing: Wanted) -> str:
        if thing.shape is None and thing.color is not None and thing.size is None and self.is_often():
            return " ".join(["something", self.color(thing.color), *self._where(thing)])
        words = self.before_color(thing.size)
        words += [self.color(thing.color)] if thing.color else []
        words.append(self.shape(thing.shape) if thing.shape else self.pick(_NOUNS))
        return self.noun_phrase(words, thing.place)

    def is_often(self) -> bool:
        return self._chance is not None and self._chance.random() < 0.3

    def _where(self, thing: Wanted) -> list[str]:
        return [self.place(thing.place)] if thing.place else []


assert set(USUAL.values()) <= set(COLORS)
