"""The judge: names the thing and the style in a cut of a picture; it learns from composites, not drawings.

Whoever evaluates cuts a picture where the caption puts a thing: so a thing is right only in its place.
"""

import random
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from compose import paste
from loop import Course, warm_then_cosine
from scenes import COLORS
from sprites import Sprites

_SIDE, _BATCH = 32, 64
_MARGIN = 1.15
"""Side of a cut, in sides of the thing."""
_CHANNELS = (32, 64, 128, 256)


class Judge(nn.Module):
    """Reads cuts `(batch, 3, 32, 32)`."""

    def __init__(self, num_things: int, num_styles: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip((3, *_CHANNELS), _CHANNELS, strict=False):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.GroupNorm(8, after), nn.SiLU()]
        self.look = nn.Sequential(*layers, nn.Flatten())
        self.thing = nn.Linear(4 * _CHANNELS[-1], num_things)
        self.style = nn.Linear(4 * _CHANNELS[-1], num_styles)

    def forward(self, cuts: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of the thing and of the style."""
        seen = self.look(cuts)
        return self.thing(seen), self.style(seen)


def train(folder: Path, num_steps: int, sprites: Sprites) -> Judge:
    """Train for `num_steps` in all, or go on from `folder`; return the judge with averaged weights."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(5)
    judge = Judge(sprites.num_things, len(sprites.styles))
    optimizer = torch.optim.AdamW(judge.parameters(), lr=1.5e-3, weight_decay=0.02)
    course = Course("judge", {"judge": judge}, [optimizer], num_steps, warm_then_cosine, folder, 0.998)

    def loss(_step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        samples = [sample(chance, sprites) for _ in range(_BATCH)]
        cuts, things, styles = (list(column) for column in zip(*samples, strict=True))
        with torch.autocast("cpu", torch.bfloat16):
            thing, style = judge(torch.stack(cuts))
        labels, kinds = torch.tensor(things), torch.tensor(styles)
        value = functional.cross_entropy(thing.float(), labels) + functional.cross_entropy(
            style.float(), kinds
        )
        return value, {"right": float((thing.argmax(1) == labels).float().mean())}

    course.run(loss)
    course.averaged()
    return judge.eval()


def sample(chance: random.Random, sprites: Sprites) -> tuple[Tensor, int, int]:
    """Return a cut of a composite, somewhat off and blurred, with the numbers of its thing and style."""
    style = chance.randrange(len(sprites.styles))
    thing = chance.randrange(sprites.num_things)
    whole = chance.choice((24, 32, 48, 64))
    ground = torch.tensor(chance.choice(list(COLORS.values())))[:, None, None] / 255
    image = ground.repeat(1, whole, whole)
    side = round(whole / _MARGIN * chance.uniform(0.85, 1.1))
    left, top = (round((whole - side) / 2 + chance.uniform(-0.06, 0.06) * whole) for _ in range(2))
    paste(image, sprites.sized(thing, sprites.styles[style], side), left, top)
    image = (image + chance.uniform(0, 0.04) * torch.randn_like(image)) * 2 - 1
    return _resized(image), thing, style


def cut(image: Tensor, x: float, y: float, side: float) -> Tensor:
    """Return a square around a place of an image `(3, h, w)`, in pixels, as the judge reads it."""
    half = round(side * _MARGIN / 2)
    padded = functional.pad(image[None], (half,) * 4, mode="replicate")[0]
    left, top = round(x), round(y)
    return _resized(padded[:, top : top + 2 * half, left : left + 2 * half])


def _resized(image: Tensor) -> Tensor:
    resized: Tensor = functional.interpolate(
        image[None], size=(_SIDE, _SIDE), mode="bilinear", antialias=True, align_corners=False
    )
    return resized[0]
