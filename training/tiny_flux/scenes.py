"""Define possible scenes and their captions.

A `Scene` is what a caption says. What it leaves open (the exact place, size and shade) is settled by a
few numbers that belong to the seed; see `layout`.
"""

import hashlib
import random
from dataclasses import dataclass

from synonyms import Synonyms, article

SHAPES = ("circle", "square", "triangle", "star", "heart", "ring", "cross", "diamond")
COLORS = {
    "red": (218, 42, 42),
    "green": (44, 160, 68),
    "blue": (44, 84, 214),
    "yellow": (240, 212, 50),
    "orange": (240, 138, 34),
    "purple": (130, 58, 180),
    "pink": (240, 140, 184),
    "cyan": (58, 204, 218),
    "brown": (122, 78, 44),
    "black": (24, 24, 24),
    "white": (238, 238, 238),
    "gray": (134, 134, 134),
}
TAUGHT_SHAPES = ("moon",)
TAUGHT_COLORS = {"copper": (174, 117, 62)}
"""What the model does not know, and an adapter teaches it; see `adapter_lessons`."""
RGB = COLORS | TAUGHT_COLORS
SIZES = ("small", "medium", "large")
PLACES = {
    "center": (0, 0),
    "left": (-1, 0),
    "right": (1, 0),
    "top": (0, -1),
    "bottom": (0, 1),
    "top left": (-1, -1),
    "top right": (1, -1),
    "bottom left": (-1, 1),
    "bottom right": (1, 1),
}
"""By the side of the image: columns -1, 0, 1 and rows -1, 0, 1."""
RELATIONS = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1), "next to": (-1, 0)}
"""Where the first object stands as seen from the second; objects next to each other stand side by side."""
_HELD_OUT = 20  # one scene of so many is never trained on


@dataclass(frozen=True)
class Thing:
    """An object; attributes that the caption leaves open are `None`."""

    shape: str
    color: str
    size: str | None = None
    place: str | None = None


@dataclass(frozen=True)
class Scene:
    """An object, or two with the first's position relative to the second. The default background is white."""

    things: tuple[Thing, ...]
    background: str | None = None
    relation: str | None = None

    @property
    def is_held_out(self) -> bool:
        return hashlib.sha256(repr(self).encode()).digest()[0] % _HELD_OUT == 0


def draw_scene(chance: random.Random, num_things: int | None = None, held_out: bool = False) -> Scene:
    """Return a random scene of the vocabulary that is, or is not, held out."""
    while True:
        scene = _any_scene(chance, num_things or chance.choice((1, 2)))
        if scene.is_held_out == held_out:
            return scene


def _any_scene(chance: random.Random, num_things: int) -> Scene:
    background = chance.choice((*COLORS, None))
    colors = [color for color in COLORS if color != (background or "white")]
    things = tuple(
        Thing(
            shape=chance.choice(SHAPES),
            color=chance.choice(colors),
            size=chance.choice((*SIZES, None)),
            place=chance.choice((*PLACES, None)) if num_things == 1 else None,
        )
        for _ in range(num_things)
    )
    return Scene(things, background, chance.choice(tuple(RELATIONS)) if num_things == 2 else None)


_SHAPE_WORDS = {
    "circle": ("circle", "circle", "circle", "disc", "dot"),
    "square": ("square", "square", "square", "box"),
    "triangle": ("triangle",),
    "star": ("star",),
    "heart": ("heart",),
    "ring": ("ring", "ring", "ring", "donut"),
    "cross": ("cross", "cross", "cross", "plus"),
    "diamond": ("diamond", "diamond", "diamond", "rhombus"),
}
SHAPE_WORDS = frozenset(word for words in _SHAPE_WORDS.values() for word in words) | {*TAUGHT_SHAPES}
_COLOR_WORDS = {
    "purple": ("purple", "purple", "violet"),
    "cyan": ("cyan", "cyan", "turquoise"),
    "gray": ("gray", "gray", "grey"),
}
_SIZE_WORDS = {
    "small": ("small", "small", "small", "tiny", "little"),
    "medium": ("medium", "medium", "medium sized"),
    "large": ("large", "large", "big", "huge"),
}
_PLACE_WORDS = {
    "center": ("in the center", "at the center", "in the middle", "in the center"),
    "left": ("at the left", "on the left", "on the left side"),
    "right": ("at the right", "on the right", "on the right side"),
    "top": ("at the top",),
    "bottom": ("at the bottom",),
}
_RELATION_WORDS = {
    "left of": ("left of", "to the left of"),
    "right of": ("right of", "to the right of"),
    "above": ("above", "over"),
    "below": ("below", "under", "beneath"),
    "next to": ("next to", "beside", "and"),
}
_BEGINNINGS = ("",) * 12 + (
    "a picture of ",
    "a drawing of ",
    "an image of ",
    "draw ",
    "a photo of ",
    "show me ",
)
_NOISE_WORDS = (
    "nice",
    "simple",
    "beautiful",
    "bright",
    "flat",
    "solid",
    "cute",
    "plain",
    "wonderful",
    "bold",
)


def caption(scene: Scene, chance: random.Random | None = None) -> str:
    """The scene in words: the plain ones, or with a `chance` any that mean the same."""
    words = Words(chance)
    return words.sentence([words.thing(thing) for thing in scene.things], scene.relation, scene.background)


class Words(Synonyms):
    """Words for the parts of a scene."""

    def sentence(self, things: list[str], relation: str | None, background: str | None) -> str:
        """Return the caption of these objects, each in words already."""
        first, *others = things
        related = [self.pick(_RELATION_WORDS[relation])] if relation else []
        parts = [self.pick(_BEGINNINGS) + first, *related, *others]
        if background is not None:
            parts.append(self.background(background))
        text = " ".join(parts)
        return f"{text}." if self.is_rare() else text

    def thing(self, thing: Thing) -> str:
        words = [*self.before_color(thing.size), self.color(thing.color), self.shape(thing.shape)]
        return self.noun_phrase(words, thing.place)

    def before_color(self, size: str | None) -> list[str]:
        """Return what stands before an object's color."""
        words = [self.pick(_SIZE_WORDS[size])] if size else []
        return [*words, self._noise()] if self.is_rare() else words

    def noun_phrase(self, words: list[str], place: str | None) -> str:
        return " ".join([article(words[0]), *words, *([self.place(place)] if place else [])])

    def color(self, color: str) -> str:
        return self.pick(_COLOR_WORDS.get(color, (color,)))

    def shape(self, shape: str) -> str:
        return self.pick(_SHAPE_WORDS.get(shape, (shape,)))

    def place(self, place: str) -> str:
        if place in _PLACE_WORDS:
            return self.pick(_PLACE_WORDS[place])
        row, column = place.split()
        other = {"top": "upper", "bottom": "lower"}[row]
        plain = f"at the {place}"
        return self.pick((plain, plain, f"in the {place} corner", f"in the {other} {column} corner"))

    def background(self, color: str) -> str:
        color = self.color(color)
        a = article(color)
        forms = (f"on {a} {color} background", f"on {color}", f"against {a} {color} backdrop")
        return self.pick((forms[0], forms[0], forms[0], *forms[1:]))

    def _noise(self) -> str:
        """Return a meaningless word, often a made-up one."""
        assert self._chance is not None
        is_common = self._chance.random() < 0.5
        return self._chance.choice(_NOISE_WORDS) if is_common else made_up_word(self._chance)


def made_up_word(chance: random.Random) -> str:
    return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9)))
