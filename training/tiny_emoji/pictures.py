"""Pictures that can be asked for, and the words that ask for them."""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scenes import COLORS, PLACES, RELATIONS, SIZES, Words
from things import STYLES, Thing

BACKGROUNDS = tuple(color for color in COLORS if color != "brown")
"""Eleven; without a word it is white."""
_HELD_OUT = 20  # one picture of so many is never trained on
_STYLE_WORDS = {"3d": ("3d", "3d", "3d", "glossy 3d", "rendered"), "flat": ("flat", "flat", "flat", "2d")}
_STYLE_UNSAID = 0.15
_NAMELESS = (Thing("", ("thing",)),) * 2
_NUM_READ, _MIN_USES = 10_000, 5  # captions read for their words; a made-up word is not made up so often


@dataclass(frozen=True)
class Item:
    """A thing by its number, as large and where the caption says; what it leaves open is `None`."""

    thing: int
    size: str | None = None
    place: str | None = None


@dataclass(frozen=True)
class Picture:
    """A picture of one thing, or of two with the first's position relative to the second."""

    items: tuple[Item, ...]
    style: str
    background: str | None = None
    relation: str | None = None

    @property
    def is_held_out(self) -> bool:
        return hashlib.sha256(repr(self).encode()).digest()[0] % _HELD_OUT == 0


@dataclass(frozen=True)
class Range:
    """Limits of what is drawn: the first so many things, and how many pictures show two."""

    num_things: int
    pair_share: float


def draw_picture(chance: random.Random, drawn: Range, held_out: bool = False) -> Picture:
    """Return a random picture that is, or is not, held out."""
    while True:
        picture = _any_picture(chance, drawn)
        if picture.is_held_out == held_out:
            return picture


def _any_picture(chance: random.Random, drawn: Range) -> Picture:
    is_pair = chance.random() < drawn.pair_share
    things = chance.sample(range(drawn.num_things), 2 if is_pair else 1)
    items = tuple(
        Item(
            thing,
            size=chance.choice((*SIZES, None, None)),
            place=None if is_pair else chance.choice((*PLACES, None, None, None)),
        )
        for thing in things
    )
    return Picture(
        items,
        style=chance.choice(STYLES),
        background=chance.choice((*BACKGROUNDS, None)),
        relation=chance.choice(tuple(RELATIONS)) if is_pair else None,
    )


def caption(picture: Picture, things: Sequence[Thing], chance: random.Random | None = None) -> str:
    """Return the picture in words: the plain ones, or with a `chance` any that mean the same."""
    return PictureWords(chance).picture(picture, things)


class PictureWords(Words):
    """Words for the parts of a picture, in lower case."""

    def picture(self, picture: Picture, things: Sequence[Thing]) -> str:
        style = self.style(picture.style)
        is_first = bool(style) and self.is_either()
        phrases = [self.item(item, things[item.thing], style if is_first else "") for item in picture.items]
        background = picture.background
        if not style or is_first:
            return self.sentence(phrases, picture.relation, background)
        parts = [self.sentence(phrases, picture.relation, None).rstrip("."), f", {style}"]
        if background is not None:
            parts.append(f", {self.background(background)}")
        return "".join(parts)

    def item(self, item: Item, thing: Thing, style: str) -> str:
        words = [*self.before_color(item.size), *style.split(), *self.name(thing).split()]
        return self.noun_phrase(words, item.place)

    def name(self, thing: Thing) -> str:
        """Return the thing's own name, or as often any of those that mean it."""
        return thing.name if self.is_either() else self.pick(thing.names)

    def is_either(self) -> bool:
        return self._chance is not None and self._chance.random() < 0.5

    def _noise(self) -> str:
        while (word := super()._noise()) in STYLES:
            pass
        return word

    def style(self, style: str) -> str:
        """Return a word for the style; without any a picture is 3D."""
        if style == STYLES[0] and self._chance and self._chance.random() < _STYLE_UNSAID:
            return ""
        return self.pick(_STYLE_WORDS[style])


def vocabulary(things: Sequence[Thing]) -> list[str]:
    """Return every word of all names, and the others that captions use again and again, in a fixed order."""
    names = {word for thing in things for name in thing.names for word in name.split()}
    chance, uses = random.Random("vocabulary"), Counter[str]()
    for _ in range(_NUM_READ):
        said = caption(_any_picture(chance, Range(2, 0.5)), _NAMELESS, chance)
        uses.update(said.replace(",", " ").replace(".", " ").split())
    return sorted(names | {word for word, times in uses.items() if times >= _MIN_USES})
