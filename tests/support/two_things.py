"""Two made-up things in both styles, so that pictures are composed without the published sets."""

import torch

from sprites import Sprites
from things import STYLES, Thing

THINGS = (Thing("1", ("disc", "coin")), Thing("2", ("box",)))
RED, BLUE = (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)


def two_sprites() -> Sprites:
    """Two opaque squares: things are red and blue in 3D, and half as bright in the flat style."""
    pixels = torch.ones(2, 4, 16, 16)
    for number, color in enumerate((RED, BLUE)):
        pixels[number, :3] = torch.tensor(color)[:, None, None]
    faint = torch.cat([pixels[:, :3] / 2, pixels[:, 3:]], dim=1)
    return Sprites(
        {style: (255 * drawn).to(torch.uint8) for style, drawn in zip(STYLES, (pixels, faint), strict=True)}
    )
