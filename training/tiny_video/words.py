"""Captions of clips, and the tokenizer that reads them."""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from diffuserve.models.folders.pretrained import load_processor
from motions import ClipScene, Direction, Motion, Speed, Thing
from synonyms import Synonyms, article
from text_encoders import BUNDLED

NUM_TOKENS = 32
"""Tokens of a caption, padding included."""

_SHAPE_WORDS = {
    "circle": ("circle", "circle", "circle", "disc", "dot"),
    "square": ("square", "square", "box"),
}
_COLOR_WORDS = {
    "purple": ("purple", "purple", "violet"),
    "cyan": ("cyan", "cyan", "turquoise"),
    "gray": ("gray", "grey"),
}
_SPEED_WORDS = {Speed.SLOW: ("slowly",), Speed.FAST: ("fast", "quickly", "rapidly")}
_DIRECTION_WORDS = {
    Direction.RIGHT: ("from left to right", "to the right", "right"),
    Direction.LEFT: ("from right to left", "to the left", "left"),
    Direction.UP: ("up", "upwards", "from bottom to top"),
    Direction.DOWN: ("down", "downwards", "from top to bottom"),
    Direction.UPPER_RIGHT: ("to the upper right", "to the top right"),
    Direction.UPPER_LEFT: ("to the upper left", "to the top left"),
    Direction.LOWER_RIGHT: ("to the lower right", "to the bottom right"),
    Direction.LOWER_LEFT: ("to the lower left", "to the bottom left"),
}
_MOTION_WORDS = {
    Motion.MOVES: ("moves", "moves", "is moving", "slides", "goes", "moving"),
    Motion.GROWS: ("grows", "grows", "is growing", "gets bigger", "growing"),
    Motion.SHRINKS: ("shrinks", "shrinks", "is shrinking", "gets smaller", "shrinking"),
    Motion.FALLS: ("falls", "falls", "falls down", "drops", "is falling", "falling"),
    Motion.BOUNCES: ("bounces", "bounces", "is bouncing", "bounces up and down", "bouncing"),
    Motion.ROTATES: ("rotates", "rotates", "spins", "is rotating", "spinning"),
    Motion.FADES: ("fades out", "fades out", "disappears", "fades away"),
    Motion.APPEARS: ("appears", "appears", "fades in"),
    Motion.TURNS: ("turns", "turns", "becomes", "changes to"),
    Motion.STAYS: ("stays still", "stays still", "stands still", "does not move"),
}
_RELATION_WORDS = {
    "left of": ("left of", "to the left of"),
    "right of": ("right of", "to the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
_BEGINNINGS = ("",) * 8 + ("a video of ", "a clip of ", "show me ")
_NOISE_WORDS = ("nice", "simple", "beautiful", "bright", "flat", "solid", "cute", "plain")


def clip_caption(scene: ClipScene, chance: random.Random | None = None) -> str:
    """Return the scene in words: the plain ones, or with a `chance` any that mean the same."""
    words = _Words(chance)
    thing = words.pick(_BEGINNINGS) + words.thing(scene.thing)
    ground = [words.background(scene.background)] if scene.background is not None else []
    neighbor = (
        [words.pick(_RELATION_WORDS[scene.relation]), words.thing(scene.neighbor)]
        if scene.neighbor is not None and scene.relation is not None
        else []
    )
    action = words.action(scene)
    is_ground_first = chance is None or chance.random() < 0.5
    parts = [thing, *ground, action, *neighbor] if is_ground_first else [thing, action, *neighbor, *ground]
    text = " ".join(parts)
    return f"{text}." if words.is_rare() else text


class _Words(Synonyms):
    """Words for the parts of a clip."""

    def thing(self, thing: Thing) -> str:
        words = [self.pick(_NOISE_WORDS)] if self.is_rare() else []
        words.append(self.color(thing.color))
        words.append(self.pick(_SHAPE_WORDS.get(thing.shape, (thing.shape,))))
        return " ".join([article(words[0]), *words])

    def color(self, color: str) -> str:
        return self.pick(_COLOR_WORDS.get(color, (color,)))

    def background(self, color: str) -> str:
        word = self.color(color)
        forms = (f"on {article(word)} {word} background", f"on {word}")
        return self.pick((forms[0], forms[0], forms[1]))

    def action(self, scene: ClipScene) -> str:
        words = [self.pick(_MOTION_WORDS[scene.motion])]
        if scene.becomes is not None:
            words.append(self.color(scene.becomes))
        if scene.direction is not None:
            words.append(self.pick(_DIRECTION_WORDS[scene.direction]))
        if scene.speed in _SPEED_WORDS:
            is_last = self._chance is not None and self._chance.random() < 0.5
            words.insert(len(words) if is_last else 1, self.pick(_SPEED_WORDS[scene.speed]))
        return " ".join(words)


def vocabulary() -> frozenset[str]:
    """Return every word that a caption may contain, in lower case."""
    groups: list[Sequence[str]] = [
        *_SPEED_WORDS.values(),
        *_DIRECTION_WORDS.values(),
        *_MOTION_WORDS.values(),
        *_RELATION_WORDS.values(),
        _BEGINNINGS,
    ]
    return frozenset(word for group in groups for choice in group for word in choice.split())


def write_tokenizer(folder: Path) -> None:
    """Write tiny-flux's T5 tokenizer with the words of motion added to its pieces.

    An unknown word is split off as `<unk>`: without these pieces "grows" and "falls" would read alike.
    Each word has a capitalised twin, since T5's tokenizer tells "Moves" from "moves".
    """
    source = BUNDLED / "tokenizer_2"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    pieces = tokenizer["model"]["vocab"]
    known = {piece for piece, _ in pieces}
    for word in sorted(vocabulary()):
        for piece in (f"▁{word}", f"▁{word.capitalize()}"):
            if piece not in known:
                pieces.append([piece, -2.0])
                known.add(piece)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    shutil.copyfile(source / "tokenizer_config.json", folder / "tokenizer_config.json")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of `folder`, written first if it is not there."""
    if not (folder / "tokenizer.json").exists():
        write_tokenizer(folder)
    return load_processor(AutoTokenizer, folder)
