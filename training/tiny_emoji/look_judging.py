"""Drawings with the adapter are judged: whether they have its look, and show the right thing."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

import judge as plain_judge
from diffuserve.models.families.packed_images.latents import unpack_latents
from emoji_denoiser import Predict
from emoji_judging import NUM_AT_ONCE, cuts_of, evenly_placed
from emoji_showing import draw
from emoji_walks import Studio
from judge import Judge
from look import NAME, gilded
from pictures import Picture
from sprites import Sprites
from things import STYLES

_CAST = {style: f"{NAME} {style}" for style in STYLES}
_LOOKS = sorted((*STYLES, *_CAST.values()))
TRUE = "true"
"""The pictures as they should be, through the VAE: what an adapter can reach."""


def both_looks(sprites: Sprites) -> Sprites:
    """Return the published pictures and the gilded ones, as twice as many styles."""
    cast = {_CAST[style]: pixels for style, pixels in gilded(sprites).pixels.items()}
    return Sprites(sprites.pixels | cast)


def train_judge(folder: Path, num_steps: int, sprites: Sprites) -> Judge:
    """Return a judge that tells things and styles, gilded or not, as `judge.train` does."""
    return plain_judge.train(folder, num_steps, both_looks(sprites))


@torch.no_grad()
def judged(
    studio: Studio,
    drawn_by: Mapping[str, Predict],
    judge: Judge,
    pictures: Sequence[Picture],
    size: tuple[int, int],
) -> dict[str, dict[str, float]]:
    """Return by the way of drawing which share of pictures of one thing is gilded, and shows the right one.

    `studio` makes gilded pictures; these are the way `TRUE`.
    """
    torch.manual_seed(0)
    right: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for start in range(0, len(pictures), NUM_AT_ONCE):
        some = pictures[start : start + NUM_AT_ONCE]
        batch = studio.make(some, size, random.Random(start))
        ways = {name: draw(predict, batch, size, 4) for name, predict in drawn_by.items()}
        for name, tokens in (ways | {TRUE: batch.clean}).items():
            images = studio.show(unpack_latents(tokens, size[1] // 16)).cpu()
            spots = zip(some, images, evenly_placed(batch, size), strict=True)
            cuts = torch.cat([cuts_of(picture, image, evenly) for picture, image, evenly in spots])
            thing, style = (logits.argmax(1).tolist() for logits in judge(cuts))
            right[name]["thing"] += [
                at == picture.items[0].thing for at, picture in zip(thing, some, strict=True)
            ]
            right[name][NAME] += [_LOOKS[at] in _CAST.values() for at in style]
    return {
        name: {part: sum(found) / len(found) for part, found in parts.items()}
        for name, parts in right.items()
    }
