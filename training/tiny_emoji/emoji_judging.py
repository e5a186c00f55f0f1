"""Shares of drawings that are right, by the judge; true pictures through the VAE are the ceiling."""

import random
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from compose import evenly_of, spots_of
from diffuserve.models.families.packed_images.latents import unpack_latents
from emoji_denoiser import Predict
from emoji_showing import draw
from emoji_walks import Batch, Studio
from judge import Judge, cut
from layout import traits_of
from pictures import Picture
from scenes import COLORS
from things import STYLES

NUM_AT_ONCE = 32


@torch.no_grad()
def judged(
    studio: Studio, predict: Predict, judge: Judge, pictures: Sequence[Picture], size: tuple[int, int]
) -> dict[str, dict[str, float]]:
    """Return shares of pictures whose parts are right, of the drawings and of the true pictures."""
    torch.manual_seed(0)
    right: dict[str, dict[str, list[bool]]] = {"drawn": defaultdict(list), "true": defaultdict(list)}
    for start in range(0, len(pictures), NUM_AT_ONCE):
        some = pictures[start : start + NUM_AT_ONCE]
        batch = studio.make(some, size, random.Random(start))
        for name, tokens in (("drawn", draw(predict, batch, size, 4)), ("true", batch.clean)):
            images = studio.show(unpack_latents(tokens, size[1] // 16)).cpu()
            for picture, image, evenly in zip(some, images, evenly_placed(batch, size), strict=True):
                for part, is_right in verdict(judge, picture, image, evenly).items():
                    right[name][part].append(is_right)
    return {
        name: {part: sum(found) / len(found) for part, found in parts.items()}
        for name, parts in right.items()
    }


def verdict(judge: Judge, picture: Picture, image: Tensor, evenly: list[float]) -> dict[str, bool]:
    """Return which parts of one picture are right, each thing looked for in its place."""
    thing, style = (logits.argmax(1).tolist() for logits in judge(cuts_of(picture, image, evenly)))
    background = _background(image) == (picture.background or "white")
    things = thing == [item.thing for item in picture.items]
    styles = style == [STYLES.index(picture.style)] * len(picture.items)
    kind = "one" if len(picture.items) == 1 else "two"
    parts = {"background": background, f"{kind}: things": things, f"{kind}: style": styles}
    return parts | {f"{kind}: all": background and things and styles}


def cuts_of(picture: Picture, image: Tensor, evenly: list[float]) -> Tensor:
    """Return what the judge reads of an image: a square where each thing ought to be."""
    height, width = image.shape[1:]
    shorter = min(height, width)
    spots = spots_of(picture, evenly, width / shorter, height / shorter)
    cuts = [cut(image, spot.x * shorter, spot.y * shorter, 2 * spot.radius * shorter) for spot in spots]
    return torch.stack(cuts)


def evenly_placed(batch: Batch, size: tuple[int, int]) -> list[list[float]]:
    """Return for each picture the numbers in -1…1 that its starting noise settles it by."""
    return [evenly_of(traits) for traits in traits_of(unpack_latents(batch.noise, size[1] // 16)).cpu()]


def _background(image: Tensor) -> str:
    """Return the name of the color that the border has."""
    border = torch.cat([image[:, 0], image[:, -1], image[:, :, 0], image[:, :, -1]], dim=1)
    found = (border.median(dim=1).values + 1) * 127.5
    names = list(COLORS)
    distances = (torch.tensor([COLORS[name] for name in names]) - found).square().sum(1)
    return names[int(distances.argmin())]
