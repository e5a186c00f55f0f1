"""What the adapter of tiny-flux learns: copper and moons, among all that the model knows already."""

import random
from dataclasses import replace

from scenes import TAUGHT_COLORS, TAUGHT_SHAPES, Scene, Thing, draw_scene

BOTH, COLOR, SHAPE, BACKGROUND, NOTHING = "both", "color", "shape", "background", "nothing"
_SHARES = {BOTH: 5, COLOR: 2, SHAPE: 2, BACKGROUND: 1, NOTHING: 2}
"""How often each is what is new in a scene; without known scenes the model would forget them."""


def lesson_of(index: int) -> Scene:
    """Return the scene of this number, one that is trained on."""
    chance = random.Random(f"lesson {index}")
    news = chance.choices([*_SHARES], [*_SHARES.values()])[0]
    return draw_lesson(chance, news, num_things=1 if chance.random() < 0.6 else 2)


def draw_lesson(chance: random.Random, news: str, num_things: int, held_out: bool = False) -> Scene:
    """Return a random scene in which this is new, and that is, or is not, held out."""
    while True:
        scene = draw_scene(chance, num_things, held_out=held_out and news == NOTHING)
        scene = _with_news(scene, news, chance)
        if scene.is_held_out == held_out:
            return scene


def _with_news(scene: Scene, news: str, chance: random.Random) -> Scene:
    if news == BACKGROUND:
        return replace(scene, background=_new_color(chance))
    chosen = chance.randrange(len(scene.things))
    things = [_taught(thing, news, chance) if i == chosen else thing for i, thing in enumerate(scene.things)]
    return replace(scene, things=tuple(things))


def _taught(thing: Thing, news: str, chance: random.Random) -> Thing:
    return replace(
        thing,
        color=_new_color(chance) if news in (BOTH, COLOR) else thing.color,
        shape=chance.choice(TAUGHT_SHAPES) if news in (BOTH, SHAPE) else thing.shape,
    )


def _new_color(chance: random.Random) -> str:
    return chance.choice(tuple(TAUGHT_COLORS))
