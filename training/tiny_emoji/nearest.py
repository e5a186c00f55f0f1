"""Copies are looked for: each drawing is compared with pictures of the training that are most like it.

Pictures are composed as they are trained on, so there is no finite set of them to search. Those nearest to a
drawing share its things, style and background: many of these are composed, of other sizes and places.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from compose import compose
from diffuserve.models.families.packed_images.latents import unpack_latents
from emoji_denoiser import Predict
from emoji_showing import draw
from emoji_walks import Studio
from layout import NUM_TRAITS
from pictures import Item, Picture
from scenes import PLACES, SIZES
from sprites import Sprites


@dataclass(frozen=True)
class Nearest:
    """A drawing's PSNR in decibels: to the picture asked for, and to the nearest one of the training."""

    to_asked: float
    to_trained: float


@torch.no_grad()
def nearest(
    studio: Studio, predict: Predict, pictures: Sequence[Picture], size: tuple[int, int], num_compared: int
) -> list[Nearest]:
    """Return how near the drawing of each held-out picture is to so many pictures of the training."""
    torch.manual_seed(0)
    chance, found = random.Random("nearest"), []
    for picture in pictures:
        batch = studio.make([picture], size, chance)
        drawn, asked = (
            studio.show(unpack_latents(tokens, size[1] // 16)).cpu()
            for tokens in (draw(predict, batch, size, 4), batch.clean)
        )
        trained = [trained_like(picture, studio.lesson.sprites, size, chance) for _ in range(num_compared)]
        found.append(Nearest(decibels(drawn, asked), max(decibels(drawn, image) for image in trained)))
    return found


def trained_like(picture: Picture, sprites: Sprites, size: tuple[int, int], chance: random.Random) -> Tensor:
    """Compose a picture that may be trained on, of the same things, style, background and relation."""
    while True:
        items = tuple(_elsewhere(item, picture.relation is not None, chance) for item in picture.items)
        other = replace(picture, items=items)
        if not other.is_held_out:
            return compose(other, sprites, torch.randn(NUM_TRAITS), *size)


def _elsewhere(item: Item, is_pair: bool, chance: random.Random) -> Item:
    place = None if is_pair else chance.choice((*PLACES, None))
    return replace(item, size=chance.choice((*SIZES, None)), place=place)


def decibels(some: Tensor, others: Tensor) -> float:
    """Return the PSNR of images in -1…1."""
    return -10 * float(torch.log10((some - others).square().mean().clamp(min=1e-9) / 4))
